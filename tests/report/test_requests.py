"""What a report says of rollout requests."""

from __future__ import annotations

import io
import json
from bisect import bisect_left
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as property_of
from hypothesis import strategies as st
from rich.console import Console

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.analysis.histogram import Histogram, exact_quantile
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.read import Journal, PointView
from otel_rl.records import Value
from otel_rl.report.build import build_report
from otel_rl.report.data.details import BadRequests, EnginePreemptions, Quantiles, RequestRow, RequestTail
from otel_rl.report.data.report import Report
from otel_rl.report.data.roles import RoleRow, RoleStage
from otel_rl.report.read.request_spans import RequestSpans
from otel_rl.report.rows.request_rows import RequestPoints
from otel_rl.report.schema import to_json
from otel_rl.report.sections.request_times import REQUESTS
from otel_rl.report.terminal import render
from otel_rl.requests import queue
from otel_rl.requests.queue import record_requests
from tests.fixtures import MS, Recording
from tests.requests.test_queue import ending, given, request

STEPS = 6


def recorded(recording: Recording, **changes: Any) -> Report:
    """Record steps of 200 ms with a rollout of 100 ms, of which one request of 100 takes 40 ms alone."""
    for number in range(STEPS):
        with otel_rl.step(number):
            with otel_rl.stage("sample"):
                recording.tick(100)
                rows = [ending(recording, one, 0 if one == 99 else 40, **changes) for one in range(100)]
                record_requests(given, rows)
                queue.record_load("engine", "", recording.clock.ns, 1, 2, 0.5)
            with otel_rl.stage("reward"):
                recording.tick(100)
    return build_report(recording.stop(), recording.clock.ns)


def shown(report: Report, width: int = 80) -> str:
    """Render a report as plain text."""
    out = io.StringIO()
    render(report, Console(file=out, width=width))
    assert width >= max(len(line) for line in out.getvalue().splitlines()[:-1])  # the last is the path
    return out.getvalue()


def test_requests_are_summed_up(recording: Recording) -> None:
    """Over all steps, with quantiles from the histograms."""
    found = recorded(recording).requests
    (row,) = found.rows
    assert (600, "engine", ["m"], True, False) == (row.count, row.engine, row.models, row.is_bulk, row.is_evaluation)
    assert Quantiles(count=600, median=5, p99=5, longest=5, is_exact=True, error=0) == row.prompt_tokens
    assert row.duration_s is not None
    assert (600, pytest.approx(0.06, rel=row.duration_s.error), pytest.approx(0.1)) == (
        row.duration_s.count,
        row.duration_s.median,
        row.duration_s.longest,
    )
    assert (0, 0, 0, 0, None, [], 0.5, []) == (
        row.aborted, row.timed_out, row.clipped, row.errors, row.preemptions, found.engine_preemptions,
        found.kv_cache_peak, found.bad,
    )  # fmt: skip
    tails = {0.01: 0.4, 0.05: 0.4, 0.1: 0.4}
    assert tails == {tail.slowest: pytest.approx(tail.share) for tail in found.tails}
    assert [pytest.approx(0.2)] * 3 == [tail.step_share for tail in found.tails]
    assert 0.99 * 0.4 == pytest.approx(found.bubble)


def test_spans_of_requests_are_no_stages(recording: Recording) -> None:
    """They are a few of many: the stage table would tell their choice."""
    report = recorded(recording)
    assert {"rl.sample", "rl.reward", "rl.other"} == {row.stage for row in report.stages}


def test_the_tail_is_a_finding(recording: Recording) -> None:
    """Where the slowest alone take a tenth of the step."""
    found = recorded(recording).findings.time
    sentence = "The slowest 1 % of the responses alone take 40 % of the rollout, 20 % of the step."
    assert sentence in [one.sentence for one in found if one.rule == "slow_tail"]


def test_the_terminal_shows_them(recording: Recording) -> None:
    """A table of times and tokens, and what they mean under bulk submission."""
    text = shown(recorded(recording))
    for line in (
        "engine m, bulk: 600 requests\n",
        "requests          median      p99  longest\n",
        "duration         ",
        "prompt tokens          5        5        5\n",
        "Submitted in bulk, TTFT is queue position: judge the engine by prefill and TPOT.\n",
        "the last 1 % of the requests took 40 % of the rollout, 5 % 40 %, 10 % 40 %\n",
        "finished responses waited for the longest: 40 % of the generation capacity\n",
        "highest KV-cache usage: 50 %\n",
        "of 600 requests are spans; metrics count all\n",
    ):
        assert line in text, text


def test_a_batch_that_is_taken_up_at_once_has_no_queue(recording: Recording) -> None:
    """Its TTFT is no queue position, and nobody says so."""
    report = recorded(recording, first_token=recording.clock.ns + 50 * MS)
    assert "TTFT is queue position" not in shown(report)


def test_what_became_of_them_and_what_is_wrong_is_said(recording: Recording) -> None:
    """Streamed ones and those of an evaluation apart."""
    with otel_rl.step(1):
        with otel_rl.stage("sample"):
            recording.tick(20)
            rows = [request(recording, number, streamed=True) for number in range(6)]
            rows += [
                request(recording, 6, finish="abort", streamed=True, preemptions=2),
                request(recording, 7, finish="length", streamed=True, input_tokens=0),
            ]
            record_requests(given, rows)
        with otel_rl.stage("evaluate"):
            recording.tick(20)
            record_requests(given, [request(recording, 1)])
    report = build_report(recording.stop(), recording.clock.ns)
    assert [BadRequests(reason="tokens", count=1)] == report.requests.bad
    text = shown(report)
    first = "engine m, streamed: 8 requests, 1 aborted (12 %), 1 clipped (12 %) and 2\npreemptions\n"
    for line in (
        first,
        "engine m, evaluation: 1 request; median 10 tokens and 14.0 ms\n",
        "1 request with a number of tokens that cannot be\n",
    ):
        assert line in text, text


@pytest.mark.parametrize(("finish", "expected"), [("", (None, None)), ("stop", (0, 0.0)), ("length", (1, 0.5))])
def test_a_limit_is_not_known_to_have_cut_nothing(recording: Recording, finish: str, expected: tuple[Any, Any]) -> None:
    """While an engine does not say why some requests ended, neither a count nor a share of the cut ones is known."""
    with otel_rl.step(1), otel_rl.stage("sample"):
        recording.tick(20)
        record_requests(given, [request(recording, 1), request(recording, 2, finish=finish)])
    run = recording.stop()
    (row,) = build_report(run, recording.clock.ns).requests.rows
    ratios = {one.attributes[v.OUTCOME_KIND]: one.value for one in run.points(v.REQUEST_RATIO)}
    assert (*expected, 0.0) == (row.clipped, ratios.get("clipped"), ratios["aborted"])


def test_preemptions_are_told_by_requests_or_by_their_engine(recording: Recording) -> None:
    """By kind where the requests tell them; that there were none is not the same as that nobody says so."""
    with otel_rl.step(1):
        with otel_rl.stage("sample"):
            recording.tick(20)
            for engine, preemptions in (("both", 0), ("engine", -1), ("zero", -1)):
                record_requests(given, [request(recording, 1, engine=engine, preemptions=preemptions)])
        with otel_rl.stage("evaluate"):
            recording.tick(20)
            record_requests(given, [request(recording, 1, engine="both", preemptions=2)])
            record_requests(given, [request(recording, 1, engine="engine")])
        for engine, told in (("both", (2,)), ("engine", (3, 0, 4)), ("zero", (0,))):
            queue.record_load(engine, "", recording.clock.ns, 1, 2, 0.5)
            for number in told:
                queue.record_load(engine, "", recording.clock.ns, 1, 2, 0.5, preemptions=number)
    report = build_report(recording.stop(), recording.clock.ns)
    assert {
        ("both", False): 0, ("both", True): 2, ("engine", False): None, ("engine", True): None,
        ("zero", False): None,
    } == {(row.engine, row.is_evaluation): row.preemptions for row in report.requests.rows}  # fmt: skip
    told = [EnginePreemptions(engine="engine", count=7), EnginePreemptions(engine="zero", count=0)]
    assert told == report.requests.engine_preemptions
    text = shown(report)
    assert "both m, evaluation: 1 request, 2 preemptions; median 10 tokens and 14.0 ms\n" in text, text
    assert "engine: 7 preemptions of all its requests together\n" in text, text
    assert 2 == text.partition("prompt tokens")[2].count(" preemptions"), text


def test_a_run_without_requests_says_nothing_of_them(recording: Recording) -> None:
    """No empty table."""
    with otel_rl.step(1):
        recording.tick(1)
    report = build_report(recording.stop(), recording.clock.ns)
    assert ([], [], []) == (REQUESTS.blocks(report), report.requests.rows, report.requests.tails)


def test_many_kinds_are_left_to_json(recording: Recording) -> None:
    """The terminal shows those with most requests."""
    report = recorded(recording)
    (row,) = report.requests.rows
    many: list[RequestRow] = [replace(row, models=[f"m{number}"], count=number + 1) for number in range(6)]
    text = shown(replace(report, requests=replace(report.requests, rows=many)))
    assert ("engine m5, bulk: 6 requests" in text, "engine m1, bulk" in text) == (True, False)
    assert "2 more kinds of requests in --json\n" in text


def test_the_document_holds_them(recording: Recording) -> None:
    """As the schema describes it."""
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((Path(__file__).parents[2] / "docs" / "report.schema.json").read_text("utf-8"))
    document = json.loads(to_json(recorded(recording)))
    jsonschema.validate(document, schema)
    assert 600 == document["requests"]["rows"][0]["duration_s"]["count"]


@property_of(st.lists(st.integers(0, 1000), min_size=1, max_size=50), st.floats(0, 1))
def test_a_quantile_lies_in_the_bucket_of_the_exact_one(values: list[int], share: float) -> None:
    """And between the least and the greatest value."""
    bounds = (1.0, 10.0, 100.0)
    counts = [0] * 4
    for value in values:
        counts[bisect_left(bounds, value)] += 1
    found = Histogram(bounds, counts, min(values), max(values)).quantile(share)
    place = max(0, -(-share * len(values) // 1) - 1)
    exact = sorted(values)[int(place)]
    edges = (-1.0, *bounds, 1001.0)
    bucket = bisect_left(bounds, exact)
    assert edges[bucket] <= found <= edges[bucket + 1]
    assert min(values) <= found <= max(values)
    assert exact == exact_quantile(sorted(values), share)
    error = Histogram(bounds, counts, min(values), max(values)).error(share)
    assert error is None or abs(found - exact) <= error * exact * (1 + 1e-9)


def test_histograms_of_different_boundaries_are_added() -> None:
    """As those of two versions of otel_rl in one run; one without values has no quantile."""
    one, other = Histogram((1.0, 4.0), [1, 2, 0], 0.5, 3), Histogram((1.0, 2.0, 8.0), [0, 3, 4, 5], 1.5, 9)
    assert Histogram([1.0, 4.0, 8.0], [1, 2, 0, 0], 0.5, 3) == one.plus(Histogram((8.0,), [0, 0], 7, 1))
    assert Histogram([1.0, 8.0], [1, 9, 5], 0.5, 9) == one.plus(other) == other.plus(one)
    with pytest.raises(ValueError, match="values"):
        Histogram((1.0,), [0, 0], 0, 0).quantile(0.5)


def test_rollouts_weigh_as_long_as_they_took() -> None:
    """One without a time, and those of evaluations, are left out."""
    points = RequestPoints()
    journals = [Journal(WriterIdentity(f"trainer-{rank}-1-0"), []) for rank in (0, 1)]

    def see(rank: int, name: str, time_ns: int, value: float, **attributes: Value) -> None:
        labels = {v.SLOWEST if key == "slowest" else v.MODE: one for key, one in attributes.items()}
        points.add(PointView(name, "gauge", "1", time_ns, 0, labels, {}, journals[rank], value))

    for rank in (0, 1):
        for number in range(1, 6):
            see(rank, v.TAIL, number, 0.1 * number + rank, slowest="0.01")
            see(rank, v.ROLLOUT_BUBBLE, number, 0.5)
            see(rank, v.ROLLOUT_WALL, number, float(number))
            see(rank, v.TAIL, 10 + number, 9.0, slowest="0.01")
            see(rank, v.ROLLOUT_WALL, 20 + number, 100.0, mode="eval")
    found = points.rows(0.0, RequestSpans())
    expected = sum((0.1 * number + rank) * number for number in range(1, 6) for rank in (0, 1)) / 30
    assert [RequestTail(slowest=0.01, share=pytest.approx(expected), step_share=None)] == found.tails
    assert (0.5, None, []) == (found.bubble, found.kv_cache_peak, found.rows)


def test_what_a_rollout_keeps_is_open_while_it_goes_on(recording: Recording) -> None:
    """Which of its requests become spans is known at its end: until then none of them is said to be one."""
    with otel_rl.step(0), otel_rl.stage("sample"):
        recording.tick(100)
        record_requests(given, [ending(recording, one, 40) for one in range(100)])
        assert otel_rl.flush()
        report = build_report(recording.run(), recording.clock.ns)
        assert "0 of 100 requests are spans; of 100 it is open until their rollouts are over" in shown(report)
        over = replace(report, state="killed")
        assert "0 of 100 requests are spans; of 100 it is not known: their process ended before" in shown(over)
        well = replace(report, state="finished")
        decided = "0 of 100 requests are spans; the run ended before it was decided which of 100 become spans"
        assert f"{decided}; metrics" in shown(well, 140)
        served = RoleStage(stage=v.SAMPLE_SERVE, calls=100, median_s=1, p95_s=1, longest_s=1, total_s=100)
        roles = [RoleRow(role="Server", processes=1, is_driver=False, is_rank=False, stages=[served])]
        expected = f"{decided} (their calls are rl.sample.serve); metrics"
        assert expected in shown(replace(well, roles=roles), 140)
    report = build_report(recording.stop(), recording.clock.ns)
    assert 100 == report.requests.spans + report.requests.omitted
    assert f"{report.requests.spans} of 100 requests are spans; metrics" in shown(report)
