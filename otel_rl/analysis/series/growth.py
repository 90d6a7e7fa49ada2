"""Whether a number grows steadily with the steps, as memory that leaks does, and by how much each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import mean, median
from typing import Final

WARMUP: Final = 5
"""First steps that are left out: allocators, lazy imports and caches take their memory in them."""
LEAST: Final = 16
"""Values from which on any growth is told."""
FEWEST: Final = 8
MUCH: Final = 0.5
"""From FEWEST on it is told if it is by this share of the first value."""
PARTS: Final = 8
"""Their medians tell a steady growth from one that ends, and from a single jump."""
WINDOWS: Final = 1, 2, 4
"""All steps, the last half, the last quarter: the longest with steady growth counts."""
STEADY: Final = 0.25
"""No part may grow by less than this share of what a part grows by on average."""

NEW: Final = 0.5
"""So much of a late growth must lie above all that was before: what swings comes back."""


@dataclass(frozen=True, slots=True)
class Growth:
    """A steady growth up to the last value."""

    begin: int
    """Index of the first value of it."""
    per_step: float
    first: float
    last: float


def growth(values: Sequence[float], least: Sequence[float]) -> Growth | None:
    """Find out since when values grow steadily; None if they do not.

    Args:
        values: one per step, without the warm-up.
        least: by how much, at the least: a share of the first value, and a number.
    """
    for window in WINDOWS:
        begin = len(values) - len(values) // window
        is_few = len(values) - begin < LEAST
        per_step = _steady(values[begin:]) if len(values) >= FEWEST and not (is_few and begin) else None
        if per_step is None:
            continue
        grown, (first, last) = per_step * (len(values) - begin - 1), _ends(values[begin:])
        is_new = begin == 0 or last - max(values[:begin]) >= NEW * grown
        share = max(least[0], MUCH) if is_few else least[0]
        if is_new and grown >= max(share * first, least[1]):
            return Growth(begin, per_step, first, last)
    return None


def _steady(values: Sequence[float]) -> float | None:
    """Return the median slope between the parts if all of them grow, taken in pairs."""
    bounds = [round(index * len(values) / PARTS) for index in range(PARTS + 1)]
    middles = [(low + high - 1) / 2 for low, high in pairwise(bounds)]
    heights = [median(values[low:high]) for low, high in pairwise(bounds)]
    pairs = [mean(heights[index : index + 2]) for index in range(0, PARTS, 2)]
    rises = [after - before for before, after in pairwise(pairs)]
    if min(rises) <= STEADY * max(0.0, mean(rises)):
        return None
    return median(
        (heights[right] - heights[left]) / (middles[right] - middles[left])
        for left, right in combinations(range(PARTS), 2)
    )


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return median(values[:3]), median(values[-3:])
