"""A training in the shape of SkyRL: what is seen of it, synchronous and asynchronous."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_rl import ids
from otel_rl import vocabulary as v
from otel_rl.integrations.skyrl.tracker_log import canonical_of
from otel_rl.journal.read import Run
from otel_rl.single_controller.driver import driver
from tests.fixtures import ATTEMPT, Recording, folded_run
from tests.skyrl.training import BACKEND, Calculator, config, drawn, make, skyrl

__all__ = ["skyrl"]

TRAJECTORY = """\
rl.sample.trajectory | {0} | 0-{1} | 0-{1}_{2} | 3 | 4 | 1 | ('stop',) | {3} | {3}
  rl.environment.reset | {0} | 0-{1} | 0-{1}_{2}
  rl.sample.turn | {0} | 0-{1} | 0-{1}_{2} | 3 | 2 | ('stop',) | {3} | {3}
  execute_tool Calculator | {0} | 0-{1} | 0-{1}_{2}
  rl.sample.turn | {0} | 0-{1} | 0-{1}_{2} | 6 | 2 | ('stop',) | {3} | {3}
  execute_tool Calculator | {0} | 0-{1} | 0-{1}_{2}"""
UPDATE = """\
rl.value
rl.logprob | ref
  rl.logprob.forward | {0} | 0
rl.logprob | old
  rl.logprob.forward | {0} | 0
rl.advantage
rl.train | critic
rl.train | actor"""
MICRO_BATCH = """
  rl.train.forward | 1 | 4 | 4 | 0 | 0
  rl.train.backward"""
LENGTHS = "generate/avg_num_tokens", "generate/min_num_tokens", "generate/max_num_tokens"
OPTIMIZER = """
  rl.train.optimizer"""


def indented(depth: int, *parts: str) -> list[str]:
    """Return the lines of parts of a tree, so deep in it."""
    return ["  " * depth + line for part in parts for line in part.split("\n")]


def update(samples: int) -> str:
    """Draw what a step does with its samples."""
    return UPDATE.format(samples) + samples * MICRO_BATCH + OPTIMIZER


def group_ids(key: str) -> tuple[bytes, bytes]:
    """Return trace and root of a group, which derive from its key."""
    trace, root = ids.trace_id(ATTEMPT, "rollout", key), ids.root_id(ATTEMPT, "rollout", key)
    return trace.to_bytes(16, "big"), root.to_bytes(8, "big")


def linked(run: Run) -> dict[Any, set[tuple[bytes, bytes]]]:
    """Return what each step links to, as it is on disk."""
    spans = [
        span
        for _, frame in run.frames("traces")
        for resource in ExportTraceServiceRequest.FromString(frame.payload).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
        if span.name == v.LOOP
    ]
    steps = [{one.key: one.value.int_value for one in span.attributes}[v.ITERATION] for span in spans]
    return {
        step: {(link.trace_id, link.span_id) for link in span.links} for step, span in zip(steps, spans, strict=True)
    }


def points(run: Run, *names: str) -> dict[str, list[Any]]:
    """Return the points of metrics, in their order."""
    found = list(run.points())
    return {name: [one.value for one in found if one.name == name] for name in names}


def test_a_synchronous_training(skyrl: Recording) -> None:
    """Each step is a trace, with the trajectories of all of its groups; an evaluation before it belongs to set-up."""
    trainer = make([["a"], ["b"]])
    asyncio.run(trainer.train())
    run = skyrl.stop()
    expected = [
        [
            *("rl.loop", "  rl.rank 0", "    rl.sample | train"),
            *indented(3, *(TRAJECTORY.format("train", uid, number, version) for number in range(2))),
            *indented(2, "rl.sync | sleep", "rl.sample.process", update(2)),
            *indented(2, "rl.checkpoint | skyrl", "rl.sync | sync_weights", "rl.log"),
        ]
        for version, uid in enumerate("ab")
    ]
    assert expected == drawn(run, v.LOOP)
    models = indented(2, *(["rl.setup.model"] * 3))
    evaluation = indented(2, "rl.sync | sync_weights", "rl.evaluate")
    setup = [*models, *evaluation, *indented(3, TRAJECTORY.format("eval", "e", 0, 0)), "    rl.log"]
    assert [["rl.setup", "  rl.rank 0", *setup]] == drawn(run, v.SETUP)
    assert [1, 2] == sorted(span.attributes[v.ITERATION] for span in run.spans(None) if span.name == v.LOOP)
    assert driver.trainer is None


def test_its_numbers(skyrl: Recording) -> None:
    """SkyRL's own, those of ours that mean the same, and those that are measured; the tracker gets what it got."""
    trainer = make([["a"], ["b"]])
    asyncio.run(trainer.train())
    run = skyrl.stop()
    known = (v.REWARD_SCORE, v.GRAD_NORM, v.EVAL_REWARD, v.REWARD_ZERO_STD, v.SAMPLES, "skyrl.critic/grad_norm")
    assert {
        v.REWARD_SCORE: [3.0, 3.0],
        v.GRAD_NORM: [0.5, 0.5],
        v.EVAL_REWARD: [0.25],
        v.REWARD_ZERO_STD: [1.0, 1.0],
        v.SAMPLES: [4],
        "skyrl.critic/grad_norm": [],
    } == points(run, *known)
    tokens = {one.attributes[v.TOKEN_KIND]: one.value for one in run.points() if one.name == v.SAMPLE_TOKENS}
    assert {"prompt": 12, "response": 16, "environment": 4} == tokens
    assert [0, 1, 2] == [step for step, _ in trainer.tracker.logged]


def test_settings_are_those_of_a_rank(skyrl: Recording) -> None:
    """Four prompts with two answers on two ranks; each update has half of them, and each is made thrice."""
    trainer = make([])
    asyncio.run(trainer.train())
    (said,) = [span.attributes for span in skyrl.stop().spans(None) if v.SETTINGS_STEPS in span.attributes]
    assert {
        v.SETTINGS_LEARNING_RATE: 1e-6, v.SETTINGS_SAMPLES: 4, v.SETTINGS_GROUP: 2, v.SETTINGS_LIMIT: 2,
        v.SETTINGS_UPDATES: 6.0, v.SETTINGS_STEPS: 2, v.SETTINGS_TEMPERATURE: 0.9, v.SETTINGS_KL: 0.001,
        v.SETTINGS_GRADIENT: 1.0,
    } == {key: value for key, value in said.items() if key.startswith("rl.settings")}  # fmt: skip


def test_an_asynchronous_training(skyrl: Recording) -> None:
    """A group is a trace of its own, linked by the step that trains on it; a dropped one is counted."""
    trainer = make(["a", "dropped", "b", "c", "d"], is_asynchronous=True)
    asyncio.run(trainer.train())
    run = skyrl.stop()
    expected = [
        [
            *("rl.loop", "  rl.rank 0"),
            *indented(2, f"rl.idle | queue | {said}", "rl.sample.process", update(4)),
            *indented(2, "rl.sync | sync_weights", "rl.log"),
        ]
        for said in ("0 | 0 | 0", "1 | 1 | 4")
    ]
    assert expected == drawn(run, v.LOOP)
    groups = [
        [
            f"rl.sample.group | train | 0-{uid}",
            *indented(1, *(TRAJECTORY.format("train", uid, number, 0) for number in range(2))),
        ]
        for uid in ("a", "dropped", "b", "c", "d")
    ]
    assert groups == drawn(run, v.SAMPLE_GROUP)
    assert {f"0-{uid}" for uid in ("a", "dropped", "b", "c", "d")} == folded_run(run).trajectories.groups
    assert {1: {group_ids("0-a"), group_ids("0-b")}, 2: {group_ids("0-c"), group_ids("0-d")}} == linked(run)
    dropped = [one for one in run.points() if one.name == v.GROUPS_DROPPED and one.value]
    assert [("filtered", 1)] == [(one.attributes[v.DROPPED_BECAUSE], one.value) for one in dropped]
    assert {v.SAMPLE_LAG: [0.0, 1.0], v.SAMPLE_STALE: [0.0, 1.0]} == points(run, v.SAMPLE_LAG, v.SAMPLE_STALE)


def test_a_group_that_begins_after_the_weights_were_handed_over(skyrl: Recording) -> None:
    """It has those of its step, which SkyRL counts only from the next one on."""
    asyncio.run(make(["a", "b", "late", "c"], is_asynchronous=True).train())
    run = skyrl.stop()
    assert ["0 | 0", "0 | 0", "1 | 1", "1 | 1"] == [group[1][-5:] for group in drawn(run, v.SAMPLE_GROUP)]
    assert {v.SAMPLE_LAG: [0.0, 0.0]} == points(run, v.SAMPLE_LAG)


def test_an_empty_answer(skyrl: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its place in the batch is padding, and it was no sample to train on."""
    client = import_module(f"{BACKEND}.inference_servers.remote_inference_client").RemoteInferenceClient
    answers = iter([[4], [], [4]])

    async def answer(self: Any, prompt_token_ids: list[int], *args: Any, **named: Any) -> dict[str, Any]:
        return {"stop_reason": "stop", "response_ids": next(answers)}

    monkeypatch.setattr(client, "_generate_single", answer)
    asyncio.run(make([["a"]], OneTurn).train())
    run = skyrl.stop()
    (step,) = drawn(run, v.LOOP)
    forwards = [line.strip() for line in step if line.startswith("      rl.train.forward")]
    assert ["rl.train.forward | 1 | 3 | 0 | 0 | 1", "rl.train.forward | 1 | 3 | 1 | 0 | 0"] == forwards
    samples = {
        log.attributes[v.SAMPLE_ID]: (log.attributes.get(v.SAMPLE_FINISH), log.attributes.get(v.SAMPLE_DISCARDED))
        for log in run.logs()
        if log.event_name == v.SAMPLE_RECORD
    }
    assert {"0-a_0": ("abort", "failed"), "0-a_1": (None, None)} == samples


def test_dynamic_sampling(skyrl: Recording) -> None:
    """Prompts that are asked for in addition belong to the step that trains on what is kept, and are counted."""
    asyncio.run(make([["equal"], ["a"], ["b"]], type="filter").train())
    run = skyrl.stop()
    sampled = [
        [line.split(" | ")[3] for line in step if line.startswith("      rl.sample.trajectory")]
        for step in drawn(run, v.LOOP)
    ]
    assert [["0-equal_0", "0-equal_1", "0-a_0", "0-a_1"], ["0-b_0", "0-b_1"]] == sampled
    assert [2, 1] == [sum(line.startswith("    rl.sample |") for line in step) for step in drawn(run, v.LOOP)]
    assert {v.SAMPLES: [6]} == points(run, v.SAMPLES)


class OneTurn(Calculator):
    """An environment whose first step ends it."""

    turns = 1


class Broken(Calculator):
    """An environment of one turn, whose reward raises."""

    turns = 1

    def step(self, action: list[int]) -> dict[str, Any]:
        """Fail."""
        raise ZeroDivisionError("theirs")


def test_a_reward_that_raises(skyrl: Recording) -> None:
    """With one turn, a step of the environment is the reward. Its error goes on to the program."""
    trainer = make([["a"]], Broken)
    with pytest.raises(ZeroDivisionError, match="theirs"):
        asyncio.run(trainer.train())
    failed = {
        (span.name, span.attributes.get(v.REWARD_FUNCTION), span.attributes[v.MODE])
        for span in skyrl.stop().spans(None)
        if span.attributes.get(v.ERROR_TYPE) == "ZeroDivisionError" and v.MODE in span.attributes
    }
    assert {(v.REWARD, "Broken", "eval"), (v.TRAJECTORY, None, "eval")} == failed
    assert driver.trainer is None


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({}, {"loss/avg_kl"}),
        ({"use_kl_loss": False, "use_kl_in_reward": True}, {"policy/policy_kl"}),
        ({"kl_estimator_type": "abs"}, {"loss/avg_kl", "policy/policy_kl"}),
        ({"policy_loss_type": "sapo"}, {"loss/avg_kl", "policy/loss_metrics/clip_ratio"}),
        (
            {"max_turns": 2},
            {"loss/avg_kl", "loss/avg_raw_advantages", *LENGTHS},
        ),
        (
            {"max_tokens_per_microbatch": 512},
            {"loss/avg_kl", "policy/policy_kl", "policy/policy_entropy", "policy/loss_metrics/clip_ratio"},
        ),
        ({"max_tokens_per_microbatch": 512, "strategy": "megatron"}, {"loss/avg_kl"}),
        (
            {"zero_variance_filter": True},
            {"loss/avg_kl", "policy/policy_kl", "policy/policy_entropy", "policy/loss_metrics/clip_ratio"},
        ),
        (
            {"enabled": True, "sample_full_batch": True},
            {"loss/avg_kl", "reward/avg_raw_reward", *LENGTHS},
        ),
        ({"type": "filter"}, {"loss/avg_kl", *LENGTHS}),
    ],
)  # fmt: skip
def test_numbers_that_mean_the_same(changes: dict[str, Any], missing: set[str]) -> None:
    """They depend on the settings; the others keep SkyRL's name."""
    every = {
        "policy/final_loss", "policy/policy_loss", "policy/grad_norm", "policy/policy_lr", "eval/all/avg_score",
        "reward/avg_raw_reward", *LENGTHS,
        "loss/avg_raw_advantages", "policy/policy_entropy", "policy/loss_metrics/clip_ratio", "policy/policy_kl",
        "loss/avg_kl",
    }  # fmt: skip
    assert every - missing == canonical_of(config(**changes)).keys()
