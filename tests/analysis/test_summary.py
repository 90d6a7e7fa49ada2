"""Quantiles and totals against the standard library."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rl.analysis.summary import GAP, TICKS, Summary, buckets, quantile, sparkline, summarize, trend

numbers = st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=30)


@given(numbers, st.integers(1, 99))
def test_a_quantile_is_that_of_the_standard_library(values: list[float], percentage: int) -> None:
    """The interpolation is the inclusive one, numpy's default."""
    expected = statistics.quantiles(values, n=100, method="inclusive")[percentage - 1]
    assert expected == pytest.approx(quantile(sorted(values), percentage / 100), abs=1e-3)


@given(numbers)
def test_a_summary_is_that_of_the_standard_library(values: list[float]) -> None:
    """Median and total are those of all values."""
    found = summarize(values)
    assert len(values) == found.count
    assert statistics.median(values) == pytest.approx(found.median, abs=1e-3)
    assert sum(values) == pytest.approx(found.total, abs=1e-3)


def test_nothing_sums_up_to_nothing() -> None:
    """No value gives zeros, not an error."""
    assert Summary(0, 0.0, 0.0, 0.0) == summarize([])


@pytest.mark.parametrize(("values", "share"), [([], 0.5), ([1.0], 1.5), ([1.0], -0.1)])
def test_a_quantile_of_nothing_is_an_error(values: list[float], share: float) -> None:
    """Impossible questions raise."""
    with pytest.raises(ValueError, match="a quantile needs"):
        quantile(values, share)


def test_one_value_is_every_quantile() -> None:
    """A single value is its own median and p95."""
    assert Summary(1, 3.0, 3.0, 3.0) == summarize([3.0])


any_floats = st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=40)


def test_a_trend_leaves_out_what_is_not_finite() -> None:
    """NaN and infinite values are no first value and no extreme; without others there is none. The last is the last."""
    found = trend([math.nan, 2.0, 5.0, 4.0, 1.0, math.inf])
    assert {"first": 2.0, "last": None, "mean": 3.0, "low": 1.0, "high": 5.0} == found
    assert {**found, "last": 1.0} == trend([math.nan, 2.0, 5.0, 4.0, 1.0])
    assert dict.fromkeys(found) == trend([math.nan])


def test_a_rising_line_rises() -> None:
    """Eight values use the eight blocks in order."""
    assert sparkline([float(value) for value in range(8)], 8) == TICKS


def test_a_gap_shows() -> None:
    """A stretch without a finite value is no zero."""
    assert f"▁{GAP}█" == sparkline([0.0, math.nan, 1.0], 3)
    assert f"▁{GAP}▅█" == sparkline([0.0, 0.0, 3.0, math.nan, 1.0, 1.0, 2.0, 2.0], 4)


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
