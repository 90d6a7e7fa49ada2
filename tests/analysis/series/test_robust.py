"""Levels and noise of any floats."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rl.analysis.series.robust import finite, high, level, mad, median, noise

any_floats = st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=60)
plain = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60)
WILD = [math.nan, math.inf, -math.inf]


@given(any_floats)
def test_no_float_raises(values: list[float]) -> None:
    """Without a finite value there is no level, and no noise."""
    found = [median(values), level(values), mad(values), high(values, 0.9)]
    if not finite(values):
        assert all(map(math.isnan, found))
        assert noise(values) == 0
    assert noise(values) >= 0


@given(plain)
def test_what_is_not_finite_is_left_out(values: list[float]) -> None:
    """NaN and infinite values between others change nothing."""
    mixed = [*WILD, *(one for value in values for one in (value, *WILD))]
    assert (median(values), level(values), mad(values)) == (median(mixed), level(mixed), mad(mixed))
    assert (noise(values), high(values, 0.5)) == (noise(mixed), high(mixed, 0.5))


@given(plain)
def test_a_median_is_that_of_the_standard_library(values: list[float]) -> None:
    """Also of an even number of values."""
    assert median(values) == pytest.approx(statistics.median(values), rel=1e-9, abs=1e-9)


@given(plain, st.integers(-20, 20))
def test_they_scale(values: list[float], power: int) -> None:
    """In another unit they are the same."""
    scaled = [value * 2.0**power for value in values]
    for of in (median, level, mad, noise):
        assert of(scaled) == pytest.approx(of(values) * 2.0**power)


def test_noise_is_that_of_a_gaussian_whatever_its_trend() -> None:
    """A slope and a jump hardly count."""
    chance = random.Random(1)
    noisy = [chance.gauss(0.0, 2.0) for _ in range(2000)]
    sloping = [value + index / 100 + 50 * (index > 999) for index, value in enumerate(noisy)]
    assert noise(noisy) == pytest.approx(2.0, rel=0.15)
    assert noise(sloping) == pytest.approx(2.0, rel=0.15)
    assert mad(noisy) == pytest.approx(2.0, rel=0.1)


def test_a_level_is_not_moved_by_single_wild_values() -> None:
    """Unlike a mean; unlike a median it sees a reward that is 0 in most steps."""
    assert level([1.0] * 20 + [1e9]) == 1.0
    assert level([0.0, 0.0, 1.0] * 8) > 0.2
