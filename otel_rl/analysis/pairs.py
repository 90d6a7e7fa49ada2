"""Sums over pairs of logprobs that can be joined part by part, and what a ledger keeps of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from otel_rl.analysis.checksums import CORRELATED, LAGS, LogprobSums

ROUNDING = 1e-28
"""A variance below this part of the squared mean is what rounding makes of equal values."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Pairs of numbers: how many, their means, and their squares and products around them."""

    count: int = 0
    left: float = 0.0
    right: float = 0.0
    left_squares: float = 0.0
    right_squares: float = 0.0
    products: float = 0.0

    def joined(self, other: Moments) -> Moments:
        """Give the moments of both together (Chan, Golub and LeVeque's update)."""
        count = self.count + other.count
        if not self.count or not other.count:
            return self if self.count else other
        share = other.count / count
        left, right = other.left - self.left, other.right - self.right
        weight = self.count * share
        return Moments(
            count,
            self.left + left * share,
            self.right + right * share,
            self.left_squares + other.left_squares + left * left * weight,
            self.right_squares + other.right_squares + right * right * weight,
            self.products + other.products + left * right * weight,
        )

    @property
    def correlation(self) -> float | None:
        """Pearson's; None below 16 pairs and without variance."""
        if self.count < CORRELATED or not (
            self.left_squares > ROUNDING * self.count * self.left**2
            and self.right_squares > ROUNDING * self.count * self.right**2
        ):
            return None
        scale = math.sqrt(self.left_squares) * math.sqrt(self.right_squares)
        return self.products / scale if scale > 0 else None


@dataclass(frozen=True, slots=True)
class Pairs:
    """What one part of a batch adds to the ``LogprobSums`` of the whole."""

    count: int = 0
    absolute: float = 0.0
    """Sum of |training - rollout|."""
    difference: float = 0.0
    largest: float = 0.0
    zeros: int = 0
    moments: tuple[Moments, ...] = field(default_factory=lambda: (Moments(),) * len(LAGS))
    """Of each lag."""

    def joined(self, other: Pairs) -> Pairs:
        """Give both together."""
        return Pairs(
            self.count + other.count,
            self.absolute + other.absolute,
            self.difference + other.difference,
            max(self.largest, other.largest),
            self.zeros + other.zeros,
            tuple(one.joined(another) for one, another in zip(self.moments, other.moments, strict=True)),
        )

    @property
    def sums(self) -> LogprobSums:
        """What the ledger keeps."""
        count = max(1, self.count)
        low, at, high = (moments.correlation for moments in self.moments)
        return LogprobSums(
            count=self.count,
            mean_abs=self.absolute / count,
            mean=self.difference / count,
            max_abs=self.largest,
            zeros=self.zeros,
            correlations=(low, at, high),
        )
