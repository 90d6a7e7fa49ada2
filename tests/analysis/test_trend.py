"""Trends and their small pictures."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rl.analysis.trend import GAP, TICKS, Trend, buckets, sparkline, trend

any_floats = st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=40)


def test_a_trend_counts_what_is_not_finite() -> None:
    """NaN and infinite values are counted and are neither end nor extreme."""
    assert Trend(2.0, 1.0, 3.0, 1.0, 5.0, 2) == trend([math.nan, 2.0, 5.0, 4.0, 1.0, math.inf])


def test_a_trend_of_nothing_finite_has_no_ends() -> None:
    """What does not exist is None, not NaN."""
    assert Trend(None, None, None, None, None, 1) == trend([math.nan])


def test_a_rising_line_rises() -> None:
    """Eight values use the eight blocks in order."""
    assert sparkline([float(value) for value in range(8)], 8) == TICKS


def test_a_gap_shows() -> None:
    """A stretch without a finite value is no zero."""
    assert f"▁{GAP}█" == sparkline([0.0, math.nan, 1.0], 3)


@pytest.mark.parametrize("value", [0.0, 0.1, -7.0])
def test_a_constant_is_a_flat_low_line(value: float) -> None:
    """Also where the means of its stretches differ by their rounding: 100 times 0.1 in 7 stretches."""
    assert ["▁▁▁", "▁" * 7] == [sparkline([value] * 3, 8), sparkline([value] * 100, 7)]


def test_the_largest_numbers_have_a_picture() -> None:
    """Their span is infinite as a float."""
    assert "▁█" == sparkline([-1.7e308, 1.7e308], 2)
    assert "▁" == sparkline([1.7976931348623157e308] * 3, 1)


@given(any_floats, st.integers(1, 20))
def test_a_line_never_exceeds_its_width(values: list[float], width: int) -> None:
    """Whatever the values are, the picture fits and has one mark per stretch."""
    line = sparkline(values, width)
    assert min(width, len(values)) == len(line)
    assert set(line) <= set(TICKS + GAP)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), st.integers(1, 50))
def test_buckets_lose_no_value(values: list[float], width: int) -> None:
    """Means of equal stretches stay between the extremes."""
    means = buckets(values, width)
    assert all(min(values) - 1e-6 <= mean <= max(values) + 1e-6 for mean in means)
