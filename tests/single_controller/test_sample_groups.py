"""Groups of samples: what is counted of them, how old their weights are, and links of steps to them."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

import otel_rl
from otel_rl import ids
from otel_rl import vocabulary as v
from otel_rl.journal.read import Run
from otel_rl.process.state import state
from otel_rl.report.build import build_report
from otel_rl.single_controller.sample_groups import (
    count_dropped,
    count_samples,
    groups,
    lags_of,
    link_groups,
    remember_submitted,
    server_acquired,
    server_released,
    show_groups,
)
from otel_rl.trace.apart import MAX_LINKS
from otel_rl.trace.memory import tracing
from otel_rl.trace.steps import Loop
from tests.fixtures import ATTEMPT, WALL_NS, Recording


def values(run: Run, name: str) -> list[tuple[Any, ...]]:
    """Labels and value of each point."""
    return [(*point.attributes.values(), point.value) for point in run.points(name.__eq__)]


def links(run: Run, name: str) -> list[tuple[bytes, dict[str, Any]]]:
    """Where the only span of a name links to, and what each link says."""
    frames = (frame for kind, frame in run.frames("traces"))
    resources = (one for frame in frames for one in ExportTraceServiceRequest.FromString(frame.payload).resource_spans)
    spans = [span for one in resources for scope in one.scope_spans for span in scope.spans if span.name == name]
    (span,) = spans
    return [(link.trace_id, {one.key: one.value for one in link.attributes}) for link in span.links]


def trace_of(key: str) -> bytes:
    """Id of the trace of a group."""
    return ids.trace_id(ATTEMPT, "rollout", key).to_bytes(16, "big")


def test_prompts_keep_the_call_that_brought_them(recording: Recording) -> None:
    """Also if a later call brings others."""
    for step in (1, 2):
        with otel_rl.step(step), otel_rl.stage("sample.submit"):
            remember_submitted([f"{step}", f"{step}b"])
    assert {"1": "train 1", "1b": "train 1", "2": "train 2", "2b": "train 2"} == {
        key: carrier.step for key, carrier in groups.submitted.items()
    }


def test_without_a_recording_nothing_is_kept() -> None:
    """There is no call to remember."""
    remember_submitted(["a"])
    assert {} == groups.submitted


def test_samples_and_their_tokens(recording: Recording) -> None:
    """By who wrote them."""
    count_samples(2, 10, 6, 1)
    count_samples(1, 5, 3, 0)
    run = recording.stop()
    assert [(3,)] == values(run, v.SAMPLES)
    assert [("environment", 1), ("prompt", 15), ("response", 9)] == sorted(values(run, v.SAMPLE_TOKENS))


def test_open_calls_by_server(recording: Recording) -> None:
    """A turn says which server it got; one that was never counted is not below zero."""
    with otel_rl.step(0), otel_rl.stage("sample.turn"):
        server_acquired("a")
        with otel_rl.stage("idle"):
            server_acquired("b")
    server_acquired("a")
    for server in ("a", "b", "c"):
        server_released(server)
    run = recording.stop()
    assert [("a", 1), ("b", 1), ("a", 2), ("a", 1), ("b", 0)] == values(run, v.IN_FLIGHT)
    assert ["a"] == [one.attributes[v.REPLICA] for one in run.spans(None) if v.REPLICA in one.attributes]


def test_states_and_drops(recording: Recording) -> None:
    """Of training and validation apart."""
    show_groups({"running": 2, "finished": 0}, "train")
    count_dropped(2, "stale", "train")
    count_dropped(1, "stale", "train")
    count_dropped(1, "failed", "eval")
    run = recording.stop()
    assert [("running", "train", 2), ("finished", "train", 0)] == values(run, v.GROUPS)
    assert [("failed", "eval", 1), ("stale", "train", 3)] == sorted(values(run, v.GROUPS_DROPPED))


@pytest.mark.parametrize(
    ("lags", "mean", "highest", "stale"), [([0, 0], 0, 0, 0), ([0, 1, 2], 1, 2, 2), (iter([3]), 3, 3, 1)]
)
def test_lags(recording: Recording, lags: Any, mean: float, highest: int, stale: int) -> None:
    """Mean, greatest, and how many samples have older weights than the newest."""
    number = 3 if mean == 1 else (1 if mean == 3 else 2)
    assert {v.POLICY_VERSION: 7, v.LAG_MAX: highest, v.STALE_COUNT: stale} == lags_of(lags, 7)
    run = recording.stop()
    assert [[(mean,)], [(highest,)], [(stale / number,)]] == [
        values(run, name) for name in (v.SAMPLE_LAG, v.SAMPLE_LAG_MAX, v.SAMPLE_STALE)
    ]


def test_a_stage_links_to_groups(recording: Recording) -> None:
    """Once to each, with the greatest lag of its samples if any is known."""
    with otel_rl.step(0), otel_rl.stage("sample") as stage:
        link_groups([("a", 0), ("b", None), ("a", 2), ("a", 1)], stage)
    found = links(recording.stop(), v.SAMPLE)
    assert [trace_of("a"), trace_of("b")] == [trace for trace, _ in found]
    assert [("a", 2), ("b", None)] == [
        (said[v.GROUP_ID].string_value, said[v.POLICY_LAG].int_value if v.POLICY_LAG in said else None)
        for _, said in found
    ]


def test_without_a_stage_the_open_step_links(recording: Recording) -> None:
    """Its root; outside of a step nothing does."""
    link_groups([("a", 0)])
    state.become_rank()
    tracing.loop = Loop()
    tracing.loop.begin(1)
    link_groups([("b", 0)])
    tracing.loop.end()
    assert [trace_of("b")] == [trace for trace, _ in links(recording.stop(), v.LOOP)]


def test_links_have_a_limit(recording: Recording) -> None:
    """What is cut is counted."""
    with otel_rl.step(0), otel_rl.stage("sample") as stage:
        link_groups(((str(number), None) for number in range(MAX_LINKS + 5)), stage)
    run = recording.stop()
    assert MAX_LINKS == len(links(run, v.SAMPLE))
    assert [5] == [span.attributes[v.LINKS_OMITTED] for span in run.spans(None) if span.name == v.SAMPLE]


def test_a_report_counts_the_dropped_groups_of_the_training(recording: Recording) -> None:
    """Those of an evaluation cost no training; a trajectory names the group that a step may train on."""
    for step in (1, 2):
        with otel_rl.step(step), otel_rl.stage("sample.trajectory") as trajectory:
            trajectory.set_attribute(v.GROUP_ID, f"prompt {step}")
            count_dropped(step, "filtered", "train")
            count_dropped(5, "stale", "eval")
    made = build_report(recording.stop(), WALL_NS)
    told = [one.sentence for one in made.findings.learn if one.rule == "groups_dropped"]
    assert ["100 % of the 3 prompts that were sampled were dropped (3 filtered)."] == told
