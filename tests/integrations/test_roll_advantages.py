"""Samples and rewards of ROLL's batches, as its driver has them when it has computed advantages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.integrations.roll import advantages
from otel_rl.single_controller.driver import driver
from tests.fixtures import Recording
from tests.layers.records import layered

torch = pytest.importorskip("torch")
SCORES = [1.0, 1.0, 0.0, 1.0]
GENERATING = SimpleNamespace(max_new_tokens=3)
CONFIG = SimpleNamespace(actor_infer=SimpleNamespace(generating_args=GENERATING))


def batch(**names: list[str]) -> Any:
    """Make four samples of two tokens of prompt and up to three of response; the third is left out of the loss."""
    response = torch.tensor([[0, 0, 1, 1, 1], [0, 0, 1, 1, 0], [0, 0, 1, 0, 0], [0, 0, 1, 1, 1]])
    prompt = torch.tensor([[1, 1, 0, 0, 0]] * 4)
    final = response.clone()
    final[2] = 0
    tensors = {
        "response_mask": response, "final_response_mask": final, "prompt_mask": prompt, "scores": torch.tensor(SCORES),
        "attention_mask": prompt + response, "advantages": final[:, 1:] * 0.5, "prompt_id": torch.tensor([7, 7, 9, 9]),
    }  # fmt: skip
    known = {key: np.array(value, dtype=object) for key, value in names.items()}
    return SimpleNamespace(batch=tensors, non_tensor_batch=known)


def record(recording: Recording, monkeypatch: Any, made: Any, schedulers: int = 1) -> Any:
    """Let the driver compute advantages in a step."""
    trainer = SimpleNamespace(pipeline_config=CONFIG, generate_schedulers=dict.fromkeys(range(schedulers)))
    monkeypatch.setattr(driver, "trainer", trainer)
    with otel_rl.step(1):
        advantages._scored((), {}, made)
    return recording.stop()


def test_samples_of_rlvr(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups are prompts of a domain; what the mask of the loss leaves out is rejected."""
    run = record(recording, monkeypatch, batch(domain=["math"] * 4))
    keys = v.GROUP_ID, v.SAMPLE_REWARD, v.TOKENS_PROMPT, v.TOKENS_RESPONSE, v.SAMPLE_FINISH, v.SAMPLE_DISCARDED
    assert [
        ("math-7", 1.0, 2, 3, "length", None),
        ("math-7", 1.0, 2, 2, None, None),
        ("math-9", 0.0, 2, 0, None, "rejected"),
        ("math-9", 1.0, 2, 3, "length", None),
    ] == [tuple(one.attributes.get(key) for key in keys) for one in layered(run, v.SAMPLE_RECORD)]
    points = {point.name: point for point in run.last_points(None)}
    assert points[v.REWARD_STD].value == pytest.approx(np.std(SCORES, ddof=1))
    assert (0.5, 4) == (points[v.REWARD_ZERO_STD].value, points[v.REWARD_DISTRIBUTION].count)


def test_rewards_of_several_domains_have_a_distribution_alone(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call sees one of them."""
    run = record(recording, monkeypatch, batch(domain=["math"] * 4), schedulers=2)
    names = {point.name for point in run.last_points(None)}
    assert v.REWARD_DISTRIBUTION in names
    assert names.isdisjoint((v.REWARD_STD, v.REWARD_ZERO_STD))


def test_turns_of_a_trajectory_have_one_reward(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are no samples."""
    said = {
        "traj_id": ["a", "a", "b", "c"],
        "traj_group_id": ["g", "g", "g", "h"],
        "episode_scores": [2.0, 2.0, 4.0, 1.0],
    }
    run = record(recording, monkeypatch, batch(**said))  # type: ignore[arg-type]
    (seen,) = run.last_points(v.REWARD_DISTRIBUTION)
    assert (3, 7.0) == (seen.count, seen.sum)
    assert [] == layered(run, v.SAMPLE_RECORD)
