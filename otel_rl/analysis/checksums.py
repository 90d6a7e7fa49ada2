"""What the correctness ledger's numbers mean, on plain lists; what computes them on tensors is tested against this.

B rows, T columns. Only positions where the mask is true count; without a mask all of them do. Boundaries that are to be
compared hand over the same part of the batch, the response for instance; how they pad it makes no difference to tokens.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

LAGS: Final = (-1, 0, 1)
CORRELATED: Final = 16
"""Below so many pairs of logprobs a correlation says nothing."""
HASH: Final = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""Shifts and factors of splitmix64's last steps."""
ZERO_GAP: Final = 0.1
"""A zero logprob is a missing one where training says that the token was less likely than exp(-0.1) = 0.9."""

ROUNDING = 1e-28
"""A variance below this part of the squared mean is what rounding makes of equal values."""


@dataclass(frozen=True, slots=True)
class TokenSums:
    """Sums over token ids that a moved token, a moved row or another token changes; all modulo 2^64, as int64 wraps.

    Rows and columns are numbered from 1, columns from the first true one of the row.
    """

    plain: int
    """Sum of ids: the same in any order."""
    weighted: int
    """Sum of id x column."""
    tail: int
    """Sum over rows of the last true id x its column: with it a shift is known whatever it moved in."""
    ordered: int
    """Sum of id x column x row; or, where the samples have numbers of their own, x that number."""

    def joined(self, other: TokenSums, rows: int) -> TokenSums:
        """Give the sums of this part of a batch and the one that follows it.

        Args:
            other: of the following part.
            rows: of this part, by which the other's are moved; 0 where samples have numbers of their own.
        """
        return TokenSums(
            wrap(self.plain + other.plain),
            wrap(self.weighted + other.weighted),
            wrap(self.tail + other.tail),
            wrap(self.ordered + other.ordered + rows * other.weighted),
        )


@dataclass(frozen=True, slots=True)
class MaskSums:
    """Where a mask is true."""

    size: int
    """B x T."""
    true: int
    rows: int
    """Rows with at least one true position."""
    first: int
    """Sum of the first true columns of these rows; an off-by-one leaves the number of true positions as it is."""
    last: int

    @property
    def ratio(self) -> float | None:
        """Share of true positions; None of an empty mask."""
        return self.true / self.size if self.size else None

    def joined(self, other: MaskSums) -> MaskSums:
        """Give the sums of two parts of a batch."""
        return MaskSums(
            self.size + other.size,
            self.true + other.true,
            self.rows + other.rows,
            self.first + other.first,
            self.last + other.last,
        )


@dataclass(frozen=True, slots=True)
class LogprobSums:
    """Logprobs of the same tokens by the rollout engine and by training, where both are finite."""

    count: int
    mean_abs: float
    """Mean of |training - rollout|; 0 of no token, like the next two."""
    mean: float
    max_abs: float
    zeros: int
    """Positions at which the rollout's logprob is exactly 0 and training's is far from it."""
    correlations: tuple[float | None, float | None, float | None]
    """Of rollout at column t with training at t - 1, t, t + 1, zeros of the rollout left out, since a missing value
    agrees with nothing; None below 16 pairs and without variance."""

    @property
    def lag(self) -> int | None:
        """Where they agree best: not 0 when one of them is shifted; None where that cannot be said."""
        known = [
            (value, -abs(lag), lag) for lag, value in zip(LAGS, self.correlations, strict=True) if value is not None
        ]
        return max(known)[2] if known else None


def shape_checksum(shape: Sequence[int], dtype: str) -> int:
    """Make a number of a tensor's shape and type that is the same in every process."""
    return zlib.crc32(repr((tuple(shape), dtype)).encode())


def wrap(value: int) -> int:
    """Bring a number into the range of int64, as its sums do."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


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
