"""The numbers of the correctness ledger, and how those of the parts of a batch are joined.

A batch has B rows and T columns. Only positions where the mask is true count; without a mask all of them do. Boundaries
that are compared hand over the same part of the batch, such as the response; padding makes no difference to tokens.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from operator import add
from typing import Final

LAGS: Final = (-1, 0, 1)
CORRELATED: Final = 16
HASH: Final = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""The shifts and factors of splitmix64's last steps."""
ZERO_GAP: Final = 0.1
"""A zero logprob is missing if training says that the token was less likely than exp(-0.1) = 0.9."""

ROUNDING = 1e-28
"""A variance below this share of the squared mean is rounding of equal values."""


@dataclass(frozen=True, slots=True)
class TokenSums:
    """Sums over token ids that a moved token, a moved row or another token changes; all modulo 2^64, as int64 wraps.

    Rows and columns are numbered from 1, columns from the first true one of the row.
    """

    plain: int
    """The sum of ids, equal in any order."""
    weighted: int
    tail: int
    """The sum over rows of the last true id x its column: it shows a shift, whatever that moved in."""
    ordered: int
    """The sum of id x column x row; or x the sample's own number, if it has one."""

    def joined(self, other: TokenSums, rows: int) -> TokenSums:
        """Return the sums of this part of a batch and the following one.

        Args:
            other: of the following part.
            rows: number of rows of this part; 0 if samples have numbers of their own.
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
    true: int
    rows: int
    first: int
    """The sum of these rows' first true columns; an off-by-one changes it, but not the number of true positions."""
    last: int

    @property
    def ratio(self) -> float | None:
        """Share of true positions; None for an empty mask."""
        return self.true / self.size if self.size else None

    def joined(self, other: MaskSums) -> MaskSums:
        return MaskSums(*map(add, astuple(self), astuple(other)))


@dataclass(frozen=True, slots=True)
class LogprobSums:
    """Logprobs of the same tokens by the rollout engine and by training, where both are finite."""

    count: int
    mean_abs: float
    """The mean of |training - rollout|; like the next two, 0 without tokens."""
    mean: float
    max_abs: float
    zeros: int
    """Positions where the rollout's logprob is exactly 0 and training's is far from it."""
    correlations: tuple[float | None, float | None, float | None]
    """Correlations of the rollout at column t with training at t - 1, t, t + 1, without the rollout's zeros; None below
    16 pairs and without variance."""

    @property
    def lag(self) -> int | None:
        """Return the lag where they agree best, not 0 if one of them is shifted; None if unknown."""
        known = [
            (value, -abs(lag), lag) for lag, value in zip(LAGS, self.correlations, strict=True) if value is not None
        ]
        return max(known)[2] if known else None


def shape_checksum(shape: Sequence[int], dtype: str) -> int:
    """Make a number of a tensor's shape and type that is equal in every process."""
    return zlib.crc32(repr((tuple(shape), dtype)).encode())


def wrap(value: int) -> int:
    """Bring a number into the range of int64, as its sums do."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


@dataclass(frozen=True, slots=True)
class Moments:
    """Pairs of numbers: how many, their means, and their squared deviations and products."""

    count: int = 0
    left: float = 0.0
    right: float = 0.0
    left_squares: float = 0.0
    right_squares: float = 0.0
    products: float = 0.0

    def joined(self, other: Moments) -> Moments:
        """Return the moments of both together, by the update of Chan, Golub and LeVeque."""
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
        """Pearson's correlation; None below 16 pairs and without variance."""
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
    """The sum of |training - rollout|."""
    difference: float = 0.0
    largest: float = 0.0
    zeros: int = 0
    moments: tuple[Moments, ...] = field(default_factory=lambda: (Moments(),) * len(LAGS))

    def joined(self, other: Pairs) -> Pairs:
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
