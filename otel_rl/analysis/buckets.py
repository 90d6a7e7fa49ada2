"""Buckets of exponential histograms, as OpenTelemetry defines them: every bound is the one before it times 2 ** (1/8).

A histogram counts in all buckets of one table, whatever its metric. A point has those from its least to its greatest
value, and at most ``MOST``: where they are more, two neighbours become one, until they are few enough.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import zip_longest
from typing import Final, NamedTuple

SCALE: Final = 3
"""A bucket is 9 % wide, so a quantile is less than 9 % off, and 4.5 % where the middle of the bucket is taken."""
MOST: Final = 160
"""Six decades at that width; of wider ones a bucket is 19 % wide. It is the limit of OpenTelemetry's SDKs as well."""
LOWEST: Final = -20
"""Values up to 2 ** -20 (a microsecond, if they are seconds) count as zero."""
HIGHEST: Final = 24
"""Values above 2 ** 24 (half a year) are in the last bucket."""

_PARTS: Final = 1 << SCALE
BOUNDS: Final = tuple(2.0 ** (step / _PARTS) for step in range(LOWEST * _PARTS, HIGHEST * _PARTS + 1))
"""The greatest value of the zero bucket, then of each bucket; one more holds what is above."""


class PointBuckets(NamedTuple):
    """The buckets of a point: bucket i has the values above ``2 ** ((offset + i) / 2 ** scale)``."""

    scale: int
    offset: int
    counts: list[int]


def layout(counts: Sequence[int], low: float, high: float) -> PointBuckets:
    """Lay out what was counted above zero.

    Args:
        counts: by bucket of ``BOUNDS``.
        low: the least value.
        high: the greatest one.
    """
    first, last = max(bisect_left(BOUNDS, low) - 1, 1), bisect_left(BOUNDS, high)
    while last and not counts[last]:  # the bounds of whole numbers are rounded
        last -= 1
    while first < last and not counts[first]:
        first += 1
    scale, offset, kept = SCALE, LOWEST * _PARTS + first - 1, list(counts[first : last + 1])
    while len(kept) > MOST:
        kept = [0] * (offset & 1) + kept
        kept = [one + other for one, other in zip_longest(kept[::2], kept[1::2], fillvalue=0)]
        scale, offset = scale - 1, offset >> 1
    return PointBuckets(scale, offset, kept)
