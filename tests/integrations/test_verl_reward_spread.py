"""Rewards of verl's samples, as its driver has them before it computes advantages."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from otel_rl import vocabulary as v
from otel_rl.integrations.verl import reward_spread
from tests.fixtures import Recording

torch = pytest.importorskip("torch")


def batch(scores: list[float], groups: str, trained: list[int]) -> Any:
    """Make a batch whose samples have their score on the first of two tokens."""
    by_token = torch.tensor([[score, 0.0] for score in scores])
    tensors = {"token_level_scores": by_token, "response_mask": torch.tensor([[one, 0] for one in trained])}
    return SimpleNamespace(batch=tensors, non_tensor_batch={"uid": np.array(list(groups), dtype=object)})


def recorded(recording: Recording, made: Any) -> dict[str, Any]:
    """Return the last point of each metric of the rewards of a batch."""
    reward_spread.scored((made,), {})
    run = recording.stop()
    return {point.name: point for point in run.last_points(None) if point.name.startswith("rl.reward.")}


def test_spread_groups_and_distribution(recording: Recording) -> None:
    """Of samples with a token that is trained; a group of one is none."""
    found = recorded(recording, batch([1.0, 1.0, -1.0, 1.0, 7.0, 3.0], "aabbbc", [1, 1, 1, 1, 0, 1]))
    assert {"global"} == {point.attributes[v.SCOPE_KEY] for point in found.values()}
    assert found[v.REWARD_STD].value == pytest.approx(np.std([1, 1, -1, 1, 3], ddof=1))
    assert 0.5 == found[v.REWARD_ZERO_STD].value
    seen = found[v.REWARD_DISTRIBUTION]
    assert (5, 5.0, -1.0, 3.0) == (seen.count, seen.sum, seen.min, seen.max)
    assert {-1.0: 1, 1.0: 3, 5.0: 1} == {bound: n for bound, n in zip(seen.boundaries, seen.counts, strict=False) if n}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_no_number_is_in_no_bucket(recording: Recording, bad: float) -> None:
    """The spread is none either, and its group is not one of equal rewards."""
    found = recorded(recording, batch([bad, bad, 1.0, 1.0], "aabb", [1, 1, 1, 1]))
    assert math.isnan(found[v.REWARD_STD].value)
    assert (2, 0.5) == (found[v.REWARD_DISTRIBUTION].count, found[v.REWARD_ZERO_STD].value)


def test_a_batch_without_trained_samples_says_nothing(recording: Recording) -> None:
    """As where all responses are empty."""
    assert {} == recorded(recording, batch([1.0, 0.0], "aa", [0, 0]))
