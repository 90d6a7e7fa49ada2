"""Histograms of values, and their quantiles."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, inf


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts by bucket; bucket i has the values above boundary i-1 and up to boundary i."""

    boundaries: Sequence[float]
    counts: Sequence[int]
    low: float
    high: float

    @property
    def count(self) -> int:
        return sum(self.counts)

    def plus(self, other: Histogram) -> Histogram:
        """Return the values of both.

        Boundaries remain that divide no bucket with values: of two exponential histograms those of the coarser one.
        """
        both = sorted({*self.boundaries, *other.boundaries})
        boundaries = [one for one in both if self._is_between(one) and other._is_between(one)]
        counts = [0] * (len(boundaries) + 1)
        for each in (self, other):
            for bound, count in zip((*each.boundaries, inf), each.counts, strict=True):
                counts[bisect_left(boundaries, bound)] += count
        return Histogram(boundaries, counts, min(self.low, other.low), max(self.high, other.high))

    def _is_between(self, value: float) -> bool:
        """Return whether no bucket with values goes on beyond a value that it begins before."""
        place = bisect_left(self.boundaries, value)
        is_bound = place < len(self.boundaries) and self.boundaries[place] == value
        return is_bound or not self.counts[place]

    def quantile(self, share: float) -> float:
        """Estimate a quantile; it lies in the bucket of the exact one, which is one of the values.

        Positive values are assumed to lie evenly on a logarithmic scale, as the buckets do.

        Raises:
            ValueError: there is no value, or the share is outside 0..1.
        """
        low, high, place_inside = self._place(share)
        value = low * (high / low) ** place_inside if low > 0 else low + (high - low) * place_inside
        return min(max(value, low), high)  # as rounded

    def error(self, share: float) -> float | None:
        """Return by which part of the exact quantile the estimate is off at most; None if the bucket has no such bound.

        Raises:
            ValueError: as ``quantile``.
        """
        low, high, _ = self._place(share)
        if low == high:
            return 0.0
        value = self.quantile(share)
        return max(value / low - 1, 1 - value / high) if low > 0 else None

    def _place(self, share: float) -> tuple[float, float, float]:
        """Return the edges of the bucket of a quantile, and how far inside it the quantile is, by counts."""
        _check(self.count, share)
        rank = share * self.count
        for place, reached in enumerate(accumulate(self.counts)):
            if reached and reached >= rank:
                count = self.counts[place]
                edges = (-inf, *self.boundaries, inf)
                low, high = max(edges[place], self.low), min(edges[place + 1], self.high)
                return low, high, (rank - reached + count) / count if count else 1.0
        return self.high, self.high, 1.0


def exact_quantile(ordered: Sequence[float], share: float) -> float:
    """Return the least of values in ascending order that a share of them does not exceed.

    Raises:
        ValueError: as ``Histogram.quantile``.
    """
    _check(len(ordered), share)
    return ordered[max(0, ceil(share * len(ordered)) - 1)]


def _check(count: int, share: float) -> None:
    if not count or not 0 <= share <= 1:
        raise ValueError(f"a quantile needs values and a share in 0..1: {count} values, share {share}")
