"""A training in the shape of AReaL, in this process: what is seen of its controller, its workers and its rollouts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_rl import ids
from otel_rl import vocabulary as v
from otel_rl.integrations.areal import committed_stats, engine_calls
from otel_rl.journal.read import Run
from otel_rl.process.hooked import hooking
from otel_rl.process.state import state
from otel_rl.report.build import build_report
from otel_rl.single_controller.driver import driver
from tests.areal.world import SHAPE, config, workflow
from tests.fixtures import ATTEMPT, Clock, Recording

SHOWN = (
    v.MODE, v.GROUP_ID, v.LOGPROB_KIND, v.TRAIN_MODEL, v.REWARD_FUNCTION, v.SYNC_OPERATION, v.IDLE_REASON,
    v.CHECKPOINT_FORMAT, v.BATCH_SIZE, v.TOKENS_PROMPT, v.TOKENS_RESPONSE, v.FINISH_REASONS, v.POLICY_VERSION,
    v.POLICY_VERSION_END, v.ERROR_TYPE,
)  # fmt: skip
STEP = """\
rl.idle | queue
rl.logprob | ref
  rl.logprob | ref
    rl.logprob.forward
rl.logprob | old
  rl.logprob | old
    rl.logprob.forward
rl.advantage
  rl.advantage
rl.train | actor
  rl.train | actor
    rl.train.forward
    rl.train.backward
rl.sync | update_weights
  rl.sync | update_weights"""
GROUP = """\
rl.sample.group | train | {0} | 2 | 6 | 4 | {1} | {1}
  rl.sample.trajectory | train | {0} | 1 | 3 | 2 | {1} | {1}
    rl.sample.turn | train | {0} | 3 | 2 | ('stop',) | {1} | {1}
    rl.reward | train | {0} | length
  rl.sample.trajectory | train | {0} | 1 | 3 | 2 | {1} | {1}
    rl.sample.turn | train | {0} | 3 | 2 | ('stop',) | {1} | {1}
    rl.reward | train | {0} | length"""


def _count(clock: Clock) -> int:
    """Let a nanosecond pass with each look at the clock, so that spans have an order."""
    clock.ns += 1
    return clock.ns


@pytest.fixture
def areal(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recording]:
    """Record the program of AReaL's shape, and forget it afterwards."""
    monkeypatch.syspath_prepend(SHAPE)
    monkeypatch.setattr(Clock, "__call__", _count)
    yield stubbed.start("areal")
    for name in [name for name in sys.modules if name.partition(".")[0] == "areal"]:
        del sys.modules[name]


def make(dataset: list[str], **changes: Any) -> Any:
    """Make a trainer."""
    return import_module("areal.trainer.rl_trainer").PPOTrainer(config(**changes), dataset)


def drawn(run: Run, root: str) -> list[list[str]]:
    """Draw the traces whose root has a name: spans in the order of their begin, with what they say."""
    spans = sorted(run.spans(None), key=lambda span: (span.start_ns, -span.end_ns, span.span_id))

    def lines(span: Any, depth: int) -> Iterator[str]:
        said = [str(span.attributes[key]) for key in SHOWN if key in span.attributes]
        yield "  " * depth + " | ".join((span.name, *said))
        for other in spans:
            if other.parent_id == span.span_id:
                yield from lines(other, depth + 1)

    return [list(lines(span, 0)) for span in spans if span.name == root]


def step(*last: str) -> list[str]:
    """Draw a step."""
    return ["rl.loop", "  rl.rank 0", *("    " + line for line in (*STEP.split("\n"), *last, "rl.log"))]


def linked(run: Run) -> dict[Any, set[bytes]]:
    """Return the traces that each step links to, as they are on disk."""
    spans = [
        span
        for _, frame in run.frames("traces")
        for resource in ExportTraceServiceRequest.FromString(frame.payload).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
        if span.name == v.LOOP
    ]
    steps = [{one.key: one.value.int_value for one in span.attributes}[v.ITERATION] for span in spans]
    return {step: {link.trace_id for link in span.links} for step, span in zip(steps, spans, strict=True)}


def trace_of(key: str) -> bytes:
    """Return the trace of a group, which derives from its key."""
    return ids.trace_id(ATTEMPT, "rollout", key).to_bytes(16, "big")


def test_a_training(areal: Recording) -> None:
    """A step has its workers' part below each call; each group is a trace that the step of its batch links to."""
    trainer = make(["a", "equal", "b", "c", "d"])
    trainer.train(workflow(), eval_workflow=workflow())
    run = areal.stop()
    evaluation = (
        "rl.checkpoint | hf",
        "rl.evaluate",
    )
    assert [step(), step(*evaluation)] == drawn(run, v.LOOP)
    groups = [GROUP.format(key, version).split("\n") for key, version in ((0, 0), (1, 0), (2, 0), (3, 1), (4, 1))]
    assert groups == drawn(run, v.SAMPLE_GROUP)
    (evaluated,) = [tree for tree in drawn(run, v.TRAJECTORY) if "eval" in tree[0]]
    assert [
        "rl.sample.trajectory | eval | eval-0 | 1 | 3 | 2 | 2 | 2",
        "  rl.sample.turn | eval | eval-0 | 3 | 2 | ('stop',) | 2 | 2",
        "  rl.reward | eval | eval-0 | length",
    ] == evaluated
    assert {0: {trace_of("0"), trace_of("2")}, 1: {trace_of("3"), trace_of("4")}} == linked(run)
    assert driver.trainer is None


def test_its_numbers(areal: Recording) -> None:
    """AReaL's own, those of ours that mean the same, and those that are counted; counters of AReaL's are left out."""
    trainer = make(["a", "equal", "b", "broken", "c", "none", "d"])
    trainer.train(workflow())
    points = list(areal.stop().points())
    names = (v.REWARD_SCORE, "areal.ppo_actor/update/approx_kl/avg", "areal.n__count", v.SAMPLES)
    assert {
        v.REWARD_SCORE: [0.5, 0.5],
        "areal.ppo_actor/update/approx_kl/avg": [0.1, 0.1],
        "areal.n__count": [],
        v.SAMPLES: [10],
    } == {name: [one.value for one in points if one.name == name] for name in names}
    dropped = {one.attributes[v.DROPPED_BECAUSE]: one.value for one in points if one.name == v.GROUPS_DROPPED}
    assert {"filtered": 2, "failed": 1} == dropped
    assert [0, 1] == [number for number, _ in trainer.stats_logger.committed]


def test_a_reward_that_raises(areal: Recording) -> None:
    """AReaL goes on without the group, also in the last step; what raised is named."""
    make(["a", "b", "c", "broken", "d"]).train(workflow())
    run = areal.stop()
    failed = [
        (span.name, span.attributes.get(v.REWARD_FUNCTION), span.attributes[v.GROUP_ID])
        for span in run.spans(None)
        if span.attributes.get(v.ERROR_TYPE) == "ZeroDivisionError"
    ]
    expected = {(v.REWARD, "length", "3"), (v.TRAJECTORY, None, "3"), (v.SAMPLE_GROUP, None, "3")}
    assert expected == set(failed)
    assert ["finished"] == [one.state for one in build_report(run, 0).attempts]


def test_an_update_that_raises(areal: Recording) -> None:
    """Whoever trains gets the exception as it is; step and stage fail, and no loop is left."""
    trainer, error = make(["a", "b"]), ZeroDivisionError("theirs")
    call = trainer.actor.call

    def fail(method: str, **meta: Any) -> Any:
        if method == "ppo_update":
            raise error
        return call(method, **meta)

    trainer.actor.call = fail
    with pytest.raises(ZeroDivisionError) as raised:
        trainer.train(workflow())
    assert raised.value is error
    assert driver.trainer is None
    failed = [line for line in drawn(areal.stop(), v.LOOP)[0] if "Error" in line]
    assert ["rl.loop | ZeroDivisionError", "  rl.rank 0 | ZeroDivisionError",
            "    rl.train | actor | ZeroDivisionError"] == failed  # fmt: skip


def test_a_class_of_workflows_is_hooked_once(areal: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task makes two workflows, and there may be a thousand at once."""
    followed: list[Any] = []
    monkeypatch.setattr(hooking, "follow", followed.append)
    engine = import_module("areal.infra.remote_inf_engine").RemoteInfEngine()
    kind = type(workflow())
    for _ in range(3):
        engine._resolve_workflow(kind(), None, group_size=2)
    assert ["GroupedRolloutWorkflow", "Workflow"] == [type(one).__name__ for one in followed]


def test_settings_are_those_of_a_rank(areal: Recording) -> None:
    """Two prompts with two answers, on two ranks."""
    make(["a", "b", "c", "d"]).train(workflow())
    (said,) = [span.attributes for span in areal.stop().spans(None) if v.SETTINGS_STEPS in span.attributes]
    assert {
        v.SETTINGS_LEARNING_RATE: 1e-6, v.SETTINGS_SAMPLES: 2, v.SETTINGS_GROUP: 2, v.SETTINGS_LIMIT: 8,
        v.SETTINGS_UPDATES: 4.0, v.SETTINGS_STEPS: 2, v.SETTINGS_TEMPERATURE: 0.9, v.SETTINGS_KL: 0.1,
        v.SETTINGS_GRADIENT: 1.0,
    } == {key: value for key, value in said.items() if key.startswith("rl.settings")}  # fmt: skip


def test_ranks_without_a_controller(areal: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a trainer, and counts its own tasks; the report knows how many groups there were."""
    monkeypatch.setenv("AREAL_SPMD_MODE", "1")
    monkeypatch.setenv("RANK", "3")
    make(["a", "equal", "b", "broken", "c", "d"]).train(workflow())
    run = areal.stop()
    assert {"trainer"} == {span.resource[v.ROLE] for span in run.spans(None)}
    keys = [tree[0].split(" | ")[2] for tree in drawn(run, v.SAMPLE_GROUP)]
    assert [f"3-{task}" for task in range(6)] == keys
    (dropped,) = [one for one in build_report(run, 0).findings.learn if one.rule == "groups_dropped"]
    assert {"share": 1 / 3, "of": 6, "reasons": ["1 failed", "1 filtered"]} == dropped.values


@pytest.mark.parametrize(("tp_size", "cp_size", "expected"), [(1, 1, True), (2, 1, False), (1, 2, False)])
def test_numbers_that_are_wrong_where_ranks_split(tp_size: int, cp_size: int, expected: bool) -> None:
    """They keep AReaL's name there."""
    trainer = SimpleNamespace(actor_alloc=SimpleNamespace(parallel=SimpleNamespace(tp_size=tp_size, cp_size=cp_size)))
    assert expected == (committed_stats.UNSPLIT.keys() <= committed_stats.canonical_of(trainer).keys())


def test_a_worker_has_the_role_that_it_is_started_with(recording: Recording) -> None:
    """The controller, which no worker is, keeps its own."""
    guard = SimpleNamespace(role="ref", worker_index=2)
    engine_calls._configured((guard, None), {}, None)
    assert ("trainer", 0) == (state.identity.role, state.identity.rank)
    state.inherit(kind="worker")
    engine_calls._configured((guard, None), {}, None)
    assert ("ref", 2) == (state.identity.role, state.identity.rank)


def test_a_worker_of_ray_has_the_role_in_its_name() -> None:
    """No other actor has."""
    kinds = type("RayRPCServer", (), {}), int
    assert ["eval-rollout", None] == [engine_calls.role_of_actor(kind, "eval-rollout/3") for kind in kinds]
