"""Quantiles and totals against the standard library."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rl.analysis.summary import Summary, quantile, summarize

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
