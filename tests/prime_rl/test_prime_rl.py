"""prime-rl by its shape: steps of its trainer, groups and batches of its orchestrator, numbers, and planted faults."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_rl import ids
from otel_rl import vocabulary as v
from otel_rl.integrations import prime_rl
from otel_rl.journal.read import Run
from otel_rl.journal.views import SpanView
from otel_rl.process.state import state
from tests.fixtures import ATTEMPT, Recording, described
from tests.prime_rl import world
from tests.prime_rl.training import SHAPE, orchestrate, set_up_orchestrator, train
from tests.prime_rl.world import part
from tests.programs.signatures import script

TABLE: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("signatures.json").read_text("utf-8"))
RANK = f"{v.RANK_SPAN} 0"


def ordered(run: Run) -> list[SpanView]:
    """Return all spans in the order of their begin."""
    return sorted(run.spans(None), key=lambda span: (span.start_ns, -span.end_ns))


def names(spans: list[SpanView]) -> list[tuple[str, str]]:
    """Return the name of each span and of its parent."""
    known = {span.span_id: span.name for span in spans}
    return [(span.name, known.get(span.parent_id, "")) for span in spans]


def trace_of(key: str) -> bytes:
    """Return the trace of a key."""
    return ids.trace_id(ATTEMPT, "rollout", key).to_bytes(16, "big")


def links(run: Run, name: str) -> list[list[bytes]]:
    """Return the traces that each span of this name links to, in the order of their begin."""
    found = [
        span
        for _, frame in run.frames("traces")
        for resource in ExportTraceServiceRequest.FromString(frame.payload).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
        if span.name == name
    ]
    found.sort(key=lambda span: span.start_time_unix_nano)
    return [[link.trace_id for link in span.links] for span in found]


def test_steps_of_the_trainer(recorded: Recording) -> None:
    """A step begins when its batch is asked for, and links to that; the first weights belong to the set-up."""
    train(start=5)
    run = recorded.stop()
    spans = ordered(run)
    roots = [span for span in spans if span.name == v.LOOP]
    step = [span for span in spans if span.trace_id == roots[1].trace_id]
    assert [5, 6] == [root.attributes[v.ITERATION] for root in roots]
    assert [
        (v.LOOP, ""), (RANK, v.LOOP),
        *((name, RANK) for name in (v.IDLE, v.SAMPLE_PROCESS, v.FORWARD, v.FORWARD, v.CLIP, v.SYNC, v.CHECKPOINT)),
        (v.LOG, RANK),
    ] == names(step)  # fmt: skip
    assert [[trace_of("batch-5")], [trace_of("batch-6")]] == links(run, v.LOOP)
    assert [(v.SETUP_MODEL, RANK), (v.SYNC, RANK)] == [
        pair for pair in names([span for span in spans if span.trace_id == spans[0].trace_id]) if pair[1] == RANK
    ]
    settings = [span.attributes for span in spans if v.SETTINGS_STEPS in span.attributes]
    expected = {v.SETTINGS_LEARNING_RATE: 1e-6, v.SETTINGS_STEPS: 2, v.SETTINGS_GRADIENT: 1}
    assert [expected] == [{key: one[key] for key in one if key.startswith("rl.settings")} for one in settings]


def test_numbers_of_the_trainer(recorded: Recording) -> None:
    """Ours where the meaning is the same; its loss is a mean over micro-batches of shares of a sum."""
    train()
    found = {point.name: point.value for point in recorded.stop().points()}
    expected = {v.LEARNING_RATE: 1e-6, v.GRAD_NORM: 2, v.ENTROPY: 1.5, "prime_rl.loss/mean": 0.25}
    assert expected == {name: found[name] for name in expected}
    assert ["prime_rl.loss/mean"] == [name for name in found if name.startswith("prime_rl.")]


def test_numbers_of_other_ranks(recorded: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have the same ones, which are recorded once."""
    monkeypatch.setenv("RANK", "1")
    asyncio.run(part("monitors").log({"optim/lr": 1e-6}, step=1))
    assert v.LEARNING_RATE not in {point.name for point in recorded.stop().points()}


def test_groups_and_batches(recorded: Recording) -> None:
    """Groups overlap, and each has its own episodes; a batch links to its groups, with their lags."""
    asyncio.run(orchestrate())
    run = recorded.stop()
    spans = ordered(run)
    for key in "ab":
        group = [span for span in spans if span.trace_id == trace_of(key)]
        assert [(v.SAMPLE_GROUP, ""), *[(v.TRAJECTORY, v.SAMPLE_GROUP)] * 2] == names(group)
    group = [described(span.attributes) for span in spans if span.trace_id == trace_of("b")]
    said = {v.MODE: "train", v.GROUP_ID: "b"}
    assert [{**said, v.BATCH_SIZE: 2, v.POLICY_VERSION: 1}, *[{**said, v.TOKENS_RESPONSE: 5}] * 2] == group
    batch = [span for span in spans if span.trace_id == trace_of("batch-2")]
    assert {(v.SAMPLE, ""), (v.SAMPLE, v.SAMPLE), (v.LOG, v.SAMPLE)} == set(names(batch))
    lag = {v.POLICY_VERSION: 1, v.LAG_MAX: 1, v.STALE_COUNT: 2}
    (shipped,) = [described(span.attributes) for span in batch if v.SAMPLE_BATCH_SIZE in span.attributes]
    assert {v.MODE: "train", v.SAMPLE_BATCH_SIZE: 3, **lag} == shipped
    assert [[], [trace_of("a"), trace_of("b")]] == sorted(links(run, v.SAMPLE))
    assert [(v.SYNC, "")] == names([span for span in spans if span.trace_id == trace_of("weights-1")])
    known = (v.SYSTEM, v.SYSTEM_VERSION, v.ROLE, v.MODEL_NAME)
    assert {("prime_rl", "0.8.1", "orchestrator", "Tiny-1B")} == {
        tuple(span.resource[key] for key in known) for span in spans
    }


def test_numbers_of_the_orchestrator(recorded: Recording) -> None:
    """Samples, tokens by who wrote them, lags and dropped groups; its own names are apart from the trainer's."""
    asyncio.run(orchestrate())
    points = list(recorded.stop().points())
    found = {point.name: point.value for point in points}
    expected = {
        v.SAMPLES: 3, v.SAMPLE_LAG: pytest.approx(2 / 3), v.SAMPLE_LAG_MAX: 1,
        v.REWARD_SCORE: pytest.approx(2 / 3), v.REWARD_STD: pytest.approx(3**-0.5), v.REWARD_ZERO_STD: 0.5,
        "prime_rl.orchestrator/time/step": 2,
    }  # fmt: skip
    assert expected == {name: found[name] for name in expected}
    tokens = {point.attributes[v.TOKEN_KIND]: point.value for point in points if point.name == v.SAMPLE_TOKENS}
    assert {"prompt": 6, "response": 6, "environment": 3} == tokens
    dropped = {point.attributes[v.DROPPED_BECAUSE]: point.value for point in points if point.name == v.GROUPS_DROPPED}
    assert {"stale": 1, "filtered": 1, "failed": 1} == dropped


def test_what_means_the_same_of_one_agent() -> None:
    """Of several agents no reward is that of the training."""
    one = "train/agg/effective/agent"
    evaluated = "eval/math/effective/a/reward/mean"
    numbers = dict.fromkeys((f"{one}/reward/mean", f"{one}/num_output_tokens/mean", evaluated))
    added = {key: name for key, (name, _) in prime_rl._canonical(numbers).items() if key not in prime_rl.CANONICAL}
    assert {
        f"{one}/reward/mean": v.REWARD_SCORE, f"{one}/num_output_tokens/mean": v.RESPONSE_LENGTH,
        f"{one}/num_output_tokens/max": v.RESPONSE_MAX, f"{one}/num_output_tokens/min": v.RESPONSE_MIN,
        evaluated: v.EVAL_REWARD,
    } == added  # fmt: skip
    others = {key.replace("agent", name): None for key in numbers if key.startswith("train") for name in ("a", "b")}
    assert prime_rl.CANONICAL == prime_rl._canonical(others)


@pytest.mark.parametrize(("environments", "expected"), [(1, True), (2, False)])
def test_evaluations_of_several_environments_are_no_one_number(
    environments: int, expected: bool, recorded: Recording
) -> None:
    """Each is logged by itself."""
    asyncio.run(set_up_orchestrator(environments))
    for number in range(environments):
        asyncio.run(part("monitors").log({f"eval/env-{number}/effective/a/reward/mean": 0.5}, step=1))
    found = {point.name for point in recorded.stop().points()}
    assert (expected, not expected) == (
        v.EVAL_REWARD in found, "prime_rl.orchestrator/eval/env-0/effective/a/reward/mean" in found,
    )  # fmt: skip


def test_a_group_that_is_cut_short_is_not_dropped(recorded: Recording) -> None:
    """prime-rl trains on the episodes that it has, if those that it owes are cancelled for an overload."""

    async def cut(emitted: int) -> None:
        dispatcher = part("orchestrator.dispatcher").Dispatcher(part("orchestrator.envs").Env())
        group = world.group()
        for _ in range(2):
            await dispatcher.schedule_group_episode("a", group)
        for meta, task in dispatcher.tasks[:emitted]:
            await dispatcher.emit_episode(meta, group, await task)
        await dispatcher.drop_group("a", reason="overload")

    asyncio.run(cut(1))
    asyncio.run(cut(0))
    dropped = [
        (one.attributes[v.DROPPED_BECAUSE], one.value)
        for one in recorded.stop().points()
        if one.name == v.GROUPS_DROPPED
    ]
    assert [("surplus", 1)] == dropped


def test_an_episode_that_fails(recorded: Recording) -> None:
    """prime-rl returns it: its trajectory says what failed."""
    asyncio.run(orchestrate(error="RewardError"))
    failed = [(one.name, one.status_code) for one in recorded.stop().spans(None) if v.ERROR_TYPE in one.attributes]
    assert [(v.TRAJECTORY, 2)] * 5 == failed


def test_programs_of_one_launch(recorded: Recording) -> None:
    """The launcher names run and attempt to them, and keeps its own environment."""
    seen: list[dict[str, str]] = []
    before = dict(os.environ)
    part("entrypoints.rl").rl_local(seen)
    (found,) = seen
    assert ("run", ATTEMPT) == (found["OTEL_RL_RUN_ID"], found["OTEL_RL_ATTEMPT_ID"])
    assert before == dict(os.environ)


@pytest.mark.parametrize(
    ("title", "role", "kind"),
    [
        ("Trainer", "trainer", None),
        ("Orchestrator", "orchestrator", None),
        ("EnvServer", "environment", "worker"),
        ("Inference", "rollout", None),
    ],
)
def test_roles_of_programs(
    title: str, role: str, kind: str | None, recorded: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those without steps are workers, and so is what an environment's server starts."""
    monkeypatch.setenv("OTEL_RL_PROCESS_KIND", "")
    monkeypatch.delenv("OTEL_RL_PROCESS_KIND")
    part("utils.process").set_proc_title(title)
    assert (role, kind) == (state.identity.role, os.environ.get("OTEL_RL_PROCESS_KIND"))


def test_every_target_is_in_prime_rl() -> None:
    """``signatures.json`` is of the commit that the integration names; ``scripts/signatures prime_rl`` wrote it."""
    assert set(script.targets("prime_rl")) == TABLE.keys()


def test_the_shape_has_the_signatures_of_prime_rl() -> None:
    """All of them."""
    assert script.signatures("prime_rl", SHAPE) == TABLE
