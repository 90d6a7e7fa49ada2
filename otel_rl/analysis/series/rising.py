"""Whether a number rises from step to step, also over a few steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Final

from otel_rl.analysis.summary import buckets

LEAST: Final = 5
"""Values below which nothing is said."""
MOST_BUCKETS: Final = 32
"""Further values are averaged over equal stretches."""
ORDERED: Final = 0.8
"""Kendall's rank correlation with time: nine of ten pairs of values are in order."""


@dataclass(frozen=True, slots=True)
class Rise:
    """Medians of the first and the last third."""

    first: float
    last: float


def rise(values: Sequence[float]) -> Rise | None:
    """Return how far values rise from one to the next; None if they do not."""
    means = buckets(values, MOST_BUCKETS)
    if len(means) < LEAST:
        return None
    pairs = list(combinations(means, 2))
    if sum((after > before) - (after < before) for before, after in pairs) < ORDERED * len(pairs):
        return None
    third = len(means) // 3
    return Rise(median(means[:third]), median(means[-third:]))
