"""Histograms of values, and their quantiles."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf, log
from operator import add, sub


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts by bucket; bucket i has the values above boundary i-1 and up to boundary i."""

    boundaries: Sequence[float]
    counts: Sequence[int]
    """Counts by bucket, one more than boundaries."""
    low: float
    """The least value."""
    high: float
    """The greatest value."""

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self.counts)

    def plus(self, other: Histogram) -> Histogram:
        """Return the values of both.

        Boundaries remain that divide no bucket with values: of two exponential histograms those of the coarser one. If
        buckets overlap otherwise, as in an exponential and a classic histogram, all boundaries remain, and the values
        of a bucket are divided as ``quantile`` assumes that they lie.
        """
        both = sorted({*self.boundaries, *other.boundaries})
        if not self._crosses(other):
            boundaries = [one for one in both if self._is_between(one) and other._is_between(one)]
            counts = [0] * (len(boundaries) + 1)
            for each in (self, other):
                for bound, count in zip((*each.boundaries, inf), each.counts, strict=True):
                    counts[bisect_left(boundaries, bound)] += count
        else:
            boundaries = both
            counts = list(map(add, self._divided(boundaries), other._divided(boundaries)))
        return Histogram(boundaries, counts, min(self.low, other.low), max(self.high, other.high))

    def _crosses(self, other: Histogram) -> bool:
        """Return whether a bucket with values overlaps one of the other's without one containing the other."""
        edges, others = (-inf, *self.boundaries, inf), (-inf, *other.boundaries, inf)
        for low, high, count in zip(edges, edges[1:], self.counts, strict=False):
            for edge in (low, high) if count else ():
                place = bisect_left(other.boundaries, edge)
                begin, end = others[place], others[place + 1]
                if other.counts[place] and begin < edge < end and not (begin <= low and high <= end):
                    return True
        return False

    def _divided(self, boundaries: Sequence[float]) -> list[int]:
        before = (0, *accumulate(self.counts))
        places = [bisect_left(self.boundaries, one) for one in boundaries]
        reached = [round(before[at] + self._up_to(one, at)) for one, at in zip(boundaries, places, strict=True)]
        return list(map(sub, [*reached, self.count], [0, *reached]))

    def _up_to(self, value: float, place: int) -> float:
        """Estimate how many values of a bucket are at most ``value``."""
        count, (low, high) = self.counts[place], self._edges(place)
        if value >= high:
            return count
        if not count or value <= low:
            return 0
        return count * (log(value / low) / log(high / low) if low > 0 else (value - low) / (high - low))

    def _edges(self, place: int) -> tuple[float, float]:
        """Return the least and the greatest value that a bucket may hold."""
        edges = (-inf, *self.boundaries, inf)
        return max(edges[place], self.low), min(edges[place + 1], self.high)

    def _is_between(self, value: float) -> bool:
        """Return whether no bucket with values goes on beyond a value that it begins before."""
        place = bisect_left(self.boundaries, value)
        is_bound = place < len(self.boundaries) and self.boundaries[place] == value
        return is_bound or not self.counts[place]

    def quantile(self, share: float) -> float:
        """Estimate a quantile; it lies in the bucket of the exact one.

        Positive values are assumed to lie evenly on a logarithmic scale, as the buckets do.

        Args:
            share: 0 for the least value, 1 for the greatest.

        Raises:
            ValueError: there is no value, or the share is outside 0..1.
        """
        if not self.count or not 0 <= share <= 1:
            raise ValueError(f"a quantile needs values and a share in 0..1: {self.count} values, share {share}")
        rank = share * self.count
        for place, reached in enumerate(accumulate(self.counts)):
            if reached and reached >= rank:
                count = self.counts[place]
                low, high = self._edges(place)
                place_inside = (rank - reached + count) / count if count else 1.0
                value = low * (high / low) ** place_inside if low > 0 else low + (high - low) * place_inside
                return min(max(value, low), high)  # as rounded
        return self.high
