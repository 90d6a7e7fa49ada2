"""How a number went over the steps: ends, extremes, a small picture; what is NaN or infinite is counted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

TICKS: Final = "▁▂▃▄▅▆▇█"
GAP: Final = "·"
"""Stands where no value was finite."""


@dataclass(frozen=True, slots=True)
class Trend:
    """One number over the steps; ends and extremes are of the finite values, None where there is none."""

    first: float | None
    last: float | None
    low: float | None
    high: float | None
    nonfinite: int


def trend(values: Sequence[float]) -> Trend:
    """Describe values in order of their steps."""
    finite = [value for value in values if math.isfinite(value)]
    nonfinite = len(values) - len(finite)
    if not finite:
        return Trend(None, None, None, None, nonfinite)
    return Trend(finite[0], finite[-1], min(finite), max(finite), nonfinite)


def buckets(values: Sequence[float], width: int) -> list[float]:
    """Shrink values to at most ``width`` means of equal stretches; NaN where a stretch has no finite value."""
    size = min(width, len(values))
    means: list[float] = []
    for index in range(size):
        stretch = values[index * len(values) // size : (index + 1) * len(values) // size]
        finite = [value for value in stretch if math.isfinite(value)]
        means.append(sum(value / len(finite) for value in finite) if finite else math.nan)
    return means


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw values as a line of at most ``width`` blocks, lowest to highest finite mean."""
    means = buckets(values, width)
    finite = [value for value in means if math.isfinite(value)]
    if not finite:
        return GAP * len(means)
    low, span = min(finite), max(finite) - min(finite)
    return "".join(_tick(value, low, span) for value in means)


def _tick(value: float, low: float, span: float) -> str:
    if not math.isfinite(value):
        return GAP
    if span <= 0 or not math.isfinite(span):
        return TICKS[len(TICKS) // 2 - 1]
    return TICKS[min(len(TICKS) - 1, int((value - low) / span * len(TICKS)))]
