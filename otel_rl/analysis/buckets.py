"""Buckets of exponential histograms, as OpenTelemetry defines them: each bound is the previous one times 2 ** (1/8).

Every histogram counts in the same table of buckets. A point has those from its least to its greatest value. If they are
more than ``MOST_BUCKETS``, neighbours are joined in pairs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import zip_longest
from typing import Final, NamedTuple

SCALE: Final = 3
"""A bucket is 9 % wide, so a quantile is less than 9 % off, and its middle less than 4.5 %."""
MOST_BUCKETS: Final = 160
"""This is six decades at that width, and the limit of OpenTelemetry's SDKs."""
LOWEST: Final = -20
"""Values up to 2 ** -20 (a microsecond in seconds) count as zero."""
HIGHEST: Final = 24
"""Values above 2 ** 24 (half a year) are in the last bucket."""

_PARTS: Final = 1 << SCALE
BOUNDS: Final = tuple(2.0 ** (step / _PARTS) for step in range(LOWEST * _PARTS, HIGHEST * _PARTS + 1))
"""The greatest value of the zero bucket, then of each bucket; one more bucket is for what is above."""


class PointBuckets(NamedTuple):
    """The buckets of a point: bucket i has the values above ``2 ** ((offset + i) / 2 ** scale)``."""

    scale: int
    offset: int
    counts: list[int]


def layout(counts: Sequence[int], low: float, high: float) -> PointBuckets:
    """Return the buckets of a point, from its least to its greatest value, by counts of all ``BOUNDS``."""
    first, last = max(bisect_left(BOUNDS, low) - 1, 1), bisect_left(BOUNDS, high)
    while last and not counts[last]:  # the bounds of whole numbers are rounded
        last -= 1
    while first < last and not counts[first]:
        first += 1
    scale, offset, kept = SCALE, LOWEST * _PARTS + first - 1, list(counts[first : last + 1])
    while len(kept) > MOST_BUCKETS:
        kept = [0] * (offset & 1) + kept
        kept = [one + other for one, other in zip_longest(kept[::2], kept[1::2], fillvalue=0)]
        scale, offset = scale - 1, offset >> 1
    return PointBuckets(scale, offset, kept)
