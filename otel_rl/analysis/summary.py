"""Median, quantiles and totals of many durations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Summary:
    """What a table says of many values of one kind."""

    count: int
    total: float
    median: float
    p95: float


def quantile(ordered: Sequence[float], share: float) -> float:
    """Interpolate the quantile of values in ascending order, as numpy does by default.

    Args:
        ordered: at least one value, ascending.
        share: 0 for the smallest, 1 for the largest.

    Raises:
        ValueError: no value, or a share outside 0..1.
    """
    if not ordered or not 0 <= share <= 1:
        raise ValueError(f"a quantile needs values and a share in 0..1: {len(ordered)} values, share {share}")
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def summarize(values: Sequence[float]) -> Summary:
    """Count, add up and order values; of no value at all, everything is 0."""
    if not values:
        return Summary(0, 0.0, 0.0, 0.0)
    ordered = sorted(values)
    return Summary(
        count=len(ordered),
        total=math.fsum(ordered),
        median=quantile(ordered, 0.5),
        p95=quantile(ordered, 0.95),
    )
