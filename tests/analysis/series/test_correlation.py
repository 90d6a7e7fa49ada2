"""How far two numbers move together."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rl.analysis.series.correlation import monotony, step_by_step, together

any_floats = st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=60)


@given(any_floats, any_floats)
def test_no_float_raises(left: list[float], right: list[float]) -> None:
    """Whatever the values are, and however many, a correlation lies between -1 and 1."""
    for found in (together(left, right), step_by_step(left, right), monotony(left)):
        assert -1 <= found <= 1


@given(st.lists(st.integers(-1000, 1000), min_size=4, max_size=60))
def test_the_unit_does_not_matter(values: list[int]) -> None:
    """Nor does the order of the two; a mirrored one has the other sign."""
    numbers = [float(value) for value in values]
    index = [float(one) for one in range(len(numbers))]
    found = together(numbers, index)
    assert found == pytest.approx(together([value * 1024 for value in numbers], index))
    assert found == pytest.approx(together(index, numbers))
    assert found == pytest.approx(-together([-value for value in numbers], index))


def test_nan_is_left_out() -> None:
    """With its step, on both sides."""
    left = [1.0, math.nan, 2.0, 3.0, 4.0, 5.0, math.inf, 6.0]
    assert together(left, [10.0, 0.0, 20.0, 30.0, 40.0, 50.0, 0.0, 60.0]) == pytest.approx(1.0)


def test_a_common_trend_is_no_common_noise() -> None:
    """Two numbers that rise, each with its own noise, go together as levels and not step by step."""
    chance = random.Random(3)
    left = [step / 60 + chance.gauss(0, 0.1) for step in range(60)]
    right = [step / 60 + chance.gauss(0, 0.1) for step in range(60)]
    assert together(left, right) > 0.8
    assert abs(step_by_step(left, right)) < 0.4
    assert step_by_step(left, [2 * value for value in left]) == pytest.approx(1.0)


def test_monotony_is_that_of_smoothed_values() -> None:
    """A constant has none."""
    assert monotony([1.0] * 30) == 0
    assert monotony([float(step) for step in range(30)]) == pytest.approx(1.0)
    assert monotony([-float(step) for step in range(30)]) == pytest.approx(-1.0)
