"""Groups whose rewards are no numbers."""

import math
from types import SimpleNamespace
from typing import Any

from otel_rl import vocabulary as v
from otel_rl.layers.sample_numbers import SampleNumbers


def test_one_nan_object_in_a_group_is_no_equal_reward() -> None:
    numbers = SampleNumbers()
    sample: Any = SimpleNamespace(reward=math.nan, group="a", rewards={}, response_tokens=None, finish="")
    for _ in range(2):
        numbers.add(sample)

    actual = [point[1] for point in numbers.points((), 1) if point[0] == v.REWARD_ZERO_STD]

    assert [0.0] == actual
