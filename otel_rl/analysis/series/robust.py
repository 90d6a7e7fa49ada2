"""Levels and noise of noisy numbers: single wild values do not move them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from otel_rl.analysis.summary import mean

GAUSS_DIFFERENCE: Final = math.sqrt(math.pi) / 2
"""Standard deviation over the mean distance of two values in a row, for values scattered like a Gaussian."""
GAUSS_MAD: Final = 1.4826
TRIMMED: Final = 20
"""The largest twentieth of the distances is left out: a jump is no noise."""


def finite(values: Sequence[float]) -> list[float]:
    """Return the values that are neither NaN nor infinite, in their order."""
    return [value for value in values if math.isfinite(value)]


def median(values: Sequence[float]) -> float:
    """Return the median of the finite values; NaN without any."""
    ordered = sorted(finite(values))
    if not ordered:
        return math.nan
    middle = len(ordered) // 2
    # halves: the sum of two large numbers is infinite
    return ordered[middle] if len(ordered) % 2 else ordered[middle - 1] / 2 + ordered[middle] / 2


def level(values: Sequence[float]) -> float:
    """Return the mean of the finite values without the highest and the lowest eighth; NaN without any.

    A median would hide a reward that is 0 in most steps.
    """
    ordered = sorted(finite(values))
    cut = len(ordered) // 8
    return mean(ordered[cut : len(ordered) - cut]) if ordered else math.nan


def mad(values: Sequence[float]) -> float:
    """Return the median distance from the median, scaled to a standard deviation; NaN without a finite value."""
    level = median(values)
    return GAUSS_MAD * median([abs(value - level) for value in finite(values)])


def high(values: Sequence[float], share: float) -> float:
    """Return the finite value below which this share of them lies; NaN without any."""
    ordered = sorted(finite(values))
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else math.nan


def noise(values: Sequence[float]) -> float:
    """Return the standard deviation from step to step, whatever the trend; 0 with fewer than two finite values."""
    kept = finite(values)
    # quarters: their distances stay finite
    distances = sorted(abs(after / 4 - before / 4) for before, after in pairwise(kept))
    used = distances[: len(distances) - len(distances) // TRIMMED]
    return 4 * GAUSS_DIFFERENCE * mean(used) if used else 0.0


def ranks(values: Sequence[float]) -> list[float]:
    """Return the place of each value in their order, from 0; equal ones share theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    places = [0.0] * len(values)
    start = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or values[order[end]] != values[order[start]]:
            for place in order[start:end]:
                places[place] = (start + end - 1) / 2
            start = end
    return places
