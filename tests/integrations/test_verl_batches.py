"""What stages say of verl's batches: of V1, whose values are elsewhere, and of the legacy trainer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.hooks.hook import wrap
from otel_rl.integrations.verl.hooks import INTEGRATION
from tests.fixtures import Recording

HOOKS = {hook.target.rpartition(":")[2]: hook for hook in INTEGRATION.hooks}
UID = "5f0c"
LENGTHS = ((3, 2), (3, 1), (3, 1))
"""Tokens of prompt and response; the last sample fills up the batch."""


class Batch:
    """Stands for a ``DataProto``, or for what stands for one: a driver's ``KVBatchMeta``, a rank's ``BatchMeta``."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__ |= fields

    def __len__(self) -> int:
        return len(LENGTHS)


TAGS = [{"prompt_len": p, "response_len": r, "is_padding": at == 2} for at, (p, r) in enumerate(LENGTHS)]
KEYS, META = Batch(tags=TAGS), Batch(custom_meta=TAGS)
MASK = np.array([[0] * (4 - p) + [1] * (p + r) + [0] * (2 - r) for p, r in LENGTHS])
PROMPTS = Batch(batch={"prompts": np.zeros((3, 4))})
GENERATED = Batch(
    batch={"attention_mask": MASK, "responses": np.zeros((3, 2)), "response_mask": np.array([[1, 0], [1, 0], [1, 0]])}
)
"""A tool wrote the second token of the first response."""


def call(recording: Recording, target: str, *args: Any, result: Any = None, **kwargs: Any) -> dict[str, Any]:
    """Call a function with the hook of a target inside a stage; return what either says."""
    with otel_rl.step(1), otel_rl.stage("outer"):
        wrap(HOOKS[target], lambda *args, **kwargs: result)(None, *args, **kwargs)
    (said,) = (span.attributes for span in recording.stop().spans(None) if v.BATCH_SIZE in span.attributes)
    return {key: value for key, value in said.items() if key.startswith(("rl.batch", "rl.tokens"))}


@pytest.mark.parametrize(
    ("target", "batch", "expected"),
    [
        ("PPOTrainer._update_actor", KEYS, (2, 9, 6)),
        ("RayPPOTrainer._update_actor", GENERATED, (3, 13, 9, 3, 1)),
        ("RayPPOTrainer._balance_batch", Batch(batch=None), (3,)),
        ("RayPPOTrainer._balance_batch", PROMPTS, (3,)),
        ("TrainingWorker.train_mini_batch", META, (3, 13)),
    ],
)
def test_a_stage_says_how_much_it_handles(
    recording: Recording, target: str, batch: Batch, expected: tuple[int, ...]
) -> None:
    """The driver leaves out what fills up a batch; a rank has work with it, too.

    Only a mask says which tokens of a response the policy generated.
    """
    said = call(recording, target, batch)
    names = v.BATCH_SIZE, v.TOKENS, v.TOKENS_PROMPT, v.TOKENS_RESPONSE, v.TOKENS_ENVIRONMENT
    assert dict(zip(names, expected, strict=False)) == said


def test_the_legacy_trainer_says_what_was_generated(recording: Recording) -> None:
    """By the mask of the batch that comes back."""
    said = call(recording, "AgentLoopManager.generate_sequences", PROMPTS, result=GENERATED)
    generated = {v.TOKENS_RESPONSE: 3, v.TOKENS_ENVIRONMENT: 1}
    assert {v.BATCH_SIZE: 3, v.TOKENS: 13, v.TOKENS_PROMPT: 9, **generated} == said


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({"uid": UID, "session_id": 1, "priority": 5}, (UID, f"{UID}_1")),
        ({"uid": UID, "priority": 5}, (UID, f"{UID}_5")),
        ({"priority": 5}, (None, None)),
    ],
    ids=["V1", "legacy", "without"],
)
def test_a_trajectory_and_its_reward_say_whose_they_are(
    recording: Recording, names: dict[str, Any], expected: tuple[str | None, str | None]
) -> None:
    """The same group and sample, of either trainer."""

    async def nothing(*args: Any, **kwargs: Any) -> None:
        pass

    data = Batch(batch=None, non_tensor_batch={key: np.array([value]) for key, value in names.items()})
    worker = SimpleNamespace(reward_manager=SimpleNamespace())
    with otel_rl.step(1):
        asyncio.run(wrap(HOOKS["AgentLoopWorker._run_agent_loop"], nothing)(None, {}, {"validate": False}, **names))
        asyncio.run(wrap(HOOKS["RewardLoopWorker.compute_score"], nothing)(worker, data))
    found = [span for span in recording.stop().spans(None) if span.name in (v.TRAJECTORY, v.REWARD)]
    assert [expected] * 2 == [(one.attributes.get(v.GROUP_ID), one.attributes.get(v.SAMPLE_ID)) for one in found]
