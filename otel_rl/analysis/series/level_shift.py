"""Where a number moved to another level at once and stayed there."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from otel_rl.analysis.series.robust import ranks

FEWEST: Final = 8
"""Values on either side that tell a move from chance."""
LEAST: Final = 4
"""Values on either side of the place: a shorter side puts it where it is, and not at FEWEST."""
CHANCE: Final = 0.02
"""How likely the move may be one of numbers that only scatter."""
DEVIATIONS: Final = 3.0
"""A move counts from this many standard deviations on."""
GAUSS_MAD: Final = 1.4826
AT_ONCE: Final = 0.7
"""The nearest values on both sides differ by this part of the move; of a number that grows slowly they do not."""


@dataclass(frozen=True, slots=True)
class LevelShift:
    """The medians before and after."""

    index: int
    """The first value of the new level."""
    before: float
    after: float


def level_shift(values: Sequence[float]) -> LevelShift | None:
    """Return the most likely move of finite values to another level, if their ranks are no chance (Pettitt's test).

    Single wild values move neither ranks nor medians.
    """
    if len(values) < 2 * FEWEST or not _is_likely(values):
        return None
    index = _split(values)
    found = LevelShift(index, median(values[:index]), median(values[index:]))
    by = found.after - found.before
    near = median(values[index : index + FEWEST]) - median(values[max(0, index - FEWEST) : index])
    distances = [abs(value - (found.before if place < index else found.after)) for place, value in enumerate(values)]
    is_clear = abs(by) > DEVIATIONS * GAUSS_MAD * median(distances)
    return found if is_clear and near * by >= AT_ONCE * by * by else None


def _is_likely(values: Sequence[float]) -> bool:
    """Return whether the ranks before and after some place differ by more than chance."""
    count = len(values)
    most, total = 0.0, 0.0
    for index, rank in enumerate(ranks(values)):
        if FEWEST <= index <= count - FEWEST:
            most = max(most, abs(total))
        total += 2 * rank - (count - 1)
    return 2 * math.exp(-6 * most**2 / (count**3 + count**2)) < CHANCE


def _split(values: Sequence[float]) -> int:
    """Return where the values before and after are nearest to their medians.

    Ranks would put it too far into the longer side.
    """
    before = list(_distances(values))
    after = list(_distances(values[::-1]))[::-1]
    places = range(LEAST, len(values) - LEAST + 1)
    return min(places, key=lambda index: before[index - 1] + after[index])


def _distances(values: Sequence[float]) -> Iterator[float]:
    """Return for each value how far it and all before it are from their median, together."""
    low: list[float] = []  # negative, so that the largest comes first
    high: list[float] = []
    low_sum = high_sum = 0.0
    for value in values:
        up = -heapq.heappushpop(low, -value)
        low_sum, high_sum = low_sum + value - up, high_sum + up
        heapq.heappush(high, up)
        if len(high) > len(low):
            down = heapq.heappop(high)
            low_sum, high_sum = low_sum + down, high_sum - down
            heapq.heappush(low, -down)
        yield high_sum - low_sum - low[0] * (len(low) - len(high))
