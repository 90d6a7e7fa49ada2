"""Whether numbers moved, and by more than their noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from otel_rl.analysis.series.robust import finite, level, noise
from otel_rl.analysis.summary import buckets

DEVIATIONS: Final = 4.0
"""A difference of two levels counts from this many standard errors on, if it is larger than the noise of one step."""
SMALL_DEVIATIONS: Final = 6.0
"""A smaller one has to be surer: levels wander."""
FEWEST: Final = 3
"""Values of the smallest window."""
LEVELS: Final = 20
"""A peak is looked for among at most this many levels."""


@dataclass(frozen=True, slots=True)
class Change:
    """The level of a number before and after."""

    before: float
    after: float
    scatter: float
    """Standard deviation from step to step."""
    least: float
    """The smallest difference that is no noise."""

    @property
    def by(self) -> float:
        return self.after - self.before

    @property
    def is_rise(self) -> bool:
        return self.by > self.least

    @property
    def is_fall(self) -> bool:
        return -self.by > self.least


def change(values: Sequence[float], before: slice, after: slice) -> Change:
    """Compare the levels of two stretches of finite values with their noise."""
    scatter = noise(values)
    sizes = [max(1, len(values[stretch])) for stretch in (before, after)]
    error = scatter * math.sqrt(sum(1 / size for size in sizes))
    least = min(max(scatter, DEVIATIONS * error), SMALL_DEVIATIONS * error)
    return Change(level(values[before]), level(values[after]), scatter, least)


def over_run(values: Sequence[float]) -> Change:
    """Compare the end of finite values with their beginning.

    The last fifth against the first twentieth, where learning begins; if that is noise, the last against the first
    third.
    """
    kept = finite(values)
    third = max(1, len(kept) // 3)
    found = change(kept, *_ends(kept, max(FEWEST, len(kept) // 20), max(FEWEST, len(kept) // 5)))
    return found if found.is_rise or found.is_fall else change(kept, *_ends(kept, third, third))


def _ends(values: Sequence[float], early: int, late: int) -> tuple[slice, slice]:
    return slice(0, early), slice(max(0, len(values) - late), len(values))


def peak(values: Sequence[float]) -> tuple[slice, float]:
    """Return where the highest level of finite values is, and that level; the run is cut into some levels."""
    count = max(1, min(LEVELS, len(values) // FEWEST))
    means = [(value, index) for index, value in enumerate(buckets(values, count)) if math.isfinite(value)]
    if not means:
        return slice(0, 0), math.nan
    best, index = max(means, key=lambda one: (one[0], -one[1]))
    return slice(index * len(values) // count, (index + 1) * len(values) // count), best
