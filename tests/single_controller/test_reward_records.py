"""Rewards of the samples of a step."""

from __future__ import annotations

import numpy as np
import pytest

from otel_rl import vocabulary as v
from otel_rl.records import Point
from otel_rl.single_controller.reward_records import records_of_rewards


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_rewards_that_are_not_finite(odd: float) -> None:
    """They have no spread, their group is not one of equal rewards, and numpy does not warn."""
    records = records_of_rewards(np.array([odd, odd, 1.0, 1.0]), np.array([0, 0, 1, 1]), 1)
    found = {record.name: record.value for record in records if isinstance(record, Point)}
    assert {v.REWARD_STD: pytest.approx(float("nan"), nan_ok=True), v.REWARD_ZERO_STD: 0.5} == found
