"""Where a number moved to another level at once and stayed there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

FEWEST: Final = 8
"""Values on either side."""
CHANCE: Final = 0.01
"""How likely the move may be one of numbers that only scatter."""
DEVIATIONS: Final = 3.0
"""A move counts from this many standard deviations on."""
GAUSS_MAD: Final = 1.4826
AT_ONCE: Final = 0.6
"""The nearest values on both sides differ by this part of the move; of a number that grows slowly they do not."""


@dataclass(frozen=True, slots=True)
class LevelShift:
    """The medians before and after."""

    index: int
    """The first value of the new level."""
    before: float
    after: float


def level_shift(values: Sequence[float]) -> LevelShift | None:
    """Return the most likely move of finite values to another level, by their ranks (Pettitt's test).

    Single wild values move neither ranks nor medians.
    """
    if len(values) < 2 * FEWEST:
        return None
    index, is_likely = _split(values)
    found = LevelShift(index, median(values[:index]), median(values[index:]))
    by = found.after - found.before
    near = median(values[index : index + FEWEST]) - median(values[index - FEWEST : index])
    distances = [abs(value - (found.before if place < index else found.after)) for place, value in enumerate(values)]
    is_clear = abs(by) > DEVIATIONS * GAUSS_MAD * median(distances)
    return found if is_likely and is_clear and near * by >= AT_ONCE * by * by else None


def _split(values: Sequence[float]) -> tuple[int, bool]:
    """Return where the ranks before and after differ most, and whether that is no chance."""
    count = len(values)
    ranks = _ranks(values)
    best, most, total = FEWEST, 0.0, 0.0
    for index in range(count - FEWEST + 1):
        if index >= FEWEST and abs(total) > most:
            best, most = index, abs(total)
        total += 2 * ranks[index] - (count - 1)
    return best, 2 * math.exp(-6 * most**2 / (count**3 + count**2)) < CHANCE


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the place of each value in their order, from 0; equal ones share theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or values[order[end]] != values[order[start]]:
            for place in order[start:end]:
                ranks[place] = (start + end - 1) / 2
            start = end
    return ranks
