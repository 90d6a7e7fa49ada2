"""Quantiles of values of which only a histogram is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts by bucket; bucket i holds what is above boundary i-1 and at most boundary i."""

    boundaries: Sequence[float]
    counts: Sequence[int]
    """One more than boundaries."""
    low: float
    """The least value."""
    high: float
    """The greatest one."""

    @property
    def count(self) -> int:
        """How many values there are."""
        return sum(self.counts)

    def plus(self, other: Histogram) -> Histogram:
        """Add the values of another one.

        Raises:
            ValueError: it has other boundaries.
        """
        if tuple(self.boundaries) != tuple(other.boundaries):
            raise ValueError("histograms with different boundaries cannot be added")
        counts = [one + two for one, two in zip(self.counts, other.counts, strict=True)]
        return Histogram(self.boundaries, counts, min(self.low, other.low), max(self.high, other.high))

    def quantile(self, share: float) -> float:
        """Estimate a quantile; it lies in the bucket of the exact one, at its place among the bucket's values.

        Args:
            share: 0 for the least value, 1 for the greatest.

        Raises:
            ValueError: there is no value, or the share is outside 0..1.
        """
        if not self.count or not 0 <= share <= 1:
            raise ValueError(f"a quantile needs values and a share in 0..1: {self.count} values, share {share}")
        rank = share * self.count
        edges = (float("-inf"), *self.boundaries, float("inf"))
        for place, reached in enumerate(accumulate(self.counts)):
            if reached and reached >= rank:
                count = self.counts[place]
                low, high = max(edges[place], self.low), min(edges[place + 1], self.high)
                return low + (high - low) * ((rank - reached + count) / count if count else 1.0)
        return self.high
