"""Summaries of many numbers: quantiles and totals, and how a number went over the steps."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

TICKS: Final = "▁▂▃▄▅▆▇█"
GAP: Final = "·"
ROUNDING: Final = 1e-9
"""Relative differences up to this are rounding, and no change."""
LARGEST: Final = sys.float_info.max


@dataclass(frozen=True, slots=True)
class Summary:
    """Summary of many values."""

    count: int
    total: float
    median: float
    p95: float


def quantile(ordered: Sequence[float], share: float) -> float:
    """Interpolate the quantile of values in ascending order, as numpy does by default.

    Raises:
        ValueError: no value, or a share outside 0..1.
    """
    if not len(ordered) or not 0 <= share <= 1:
        raise ValueError(f"a quantile needs values and a share in 0..1: {len(ordered)} values, share {share}")
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def summarize(values: Sequence[float]) -> Summary:
    """Return count, total and quantiles of values; all are 0 without any value."""
    if not values:
        return Summary(0, 0.0, 0.0, 0.0)
    ordered = sorted(values)
    return Summary(len(ordered), math.fsum(ordered), quantile(ordered, 0.5), quantile(ordered, 0.95))


def trend(values: Sequence[float]) -> dict[str, float | None]:
    """Return first, mean and extremes of the finite values, and the last value; None without any, or if not finite."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return dict.fromkeys(("first", "last", "mean", "low", "high"))
    last = values[-1] if math.isfinite(values[-1]) else None
    return {"first": finite[0], "last": last, "mean": mean(finite), "low": min(finite), "high": max(finite)}


def buckets(values: Sequence[float], width: int) -> list[float]:
    """Shrink values to at most ``width`` means of equal stretches; NaN where at least half of one is not finite."""
    size = min(width, len(values))
    means: list[float] = []
    for index in range(size):
        stretch = values[index * len(values) // size : (index + 1) * len(values) // size]
        finite = [value for value in stretch if math.isfinite(value)]
        means.append(mean(finite) if 2 * len(finite) > len(stretch) else math.nan)
    return means


def mean(finite: Sequence[float]) -> float:
    """Return the mean of finite values; the plain sum of large ones could be infinite."""
    count = len(finite)
    half = math.fsum([value / 2 / count for value in finite])
    return 2 * max(-LARGEST / 2, min(half, LARGEST / 2))  # rounded up, three thirds of the largest would be more


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw values as a line of at most ``width`` blocks, from the lowest to the highest mean; a constant lies low."""
    means = buckets(values, width)
    finite = [value for value in means if math.isfinite(value)]
    if not finite:
        return GAP * len(means)
    low, high = min(finite), max(finite)
    is_flat = math.isclose(low, high, rel_tol=ROUNDING)
    return "".join(_tick(value, low, low if is_flat else high) for value in means)


def _tick(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return GAP
    span = high / 2 - low / 2  # halves: the span of the largest numbers is infinite
    return TICKS[min(len(TICKS) - 1, int((value / 2 - low / 2) / span * len(TICKS)))] if span > 0 else TICKS[0]
