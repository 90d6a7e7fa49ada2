"""What the correctness ledger's numbers mean, on plain lists; what computes them on tensors is tested against this.

B rows, T columns. Only positions where the mask is true count; without a mask all of them do. Boundaries that are to be
compared hand over the same part of the batch, the response for instance; how they pad it makes no difference to tokens.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

LAGS: Final = (-1, 0, 1)
CORRELATED: Final = 16
"""Below so many pairs of logprobs a correlation says nothing."""
HASH: Final = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""Shifts and factors of splitmix64's last steps."""
ZERO_GAP: Final = 0.1
"""A zero logprob is a missing one where training says that the token was less likely than exp(-0.1) = 0.9."""

Mask = Sequence[Sequence[bool]]


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


def token_sums(
    ids: Sequence[Sequence[int]], mask: Mask | None = None, numbers: Sequence[int] | None = None
) -> TokenSums:
    """Add up token ids.

    Args:
        ids: (B, T).
        mask: which of them count.
        numbers: of the samples, (B,); by default rows count from 1. With them the sums do not change where rows do.
    """
    plain = weighted = tail = ordered = 0
    for index, row in enumerate(ids):
        number = index + 1 if numbers is None else numbers[index]
        columns = [column for column in range(len(row)) if mask is None or mask[index][column]]
        true = [(column - columns[0] + 1, row[column]) for column in columns]
        in_row = sum(column * token for column, token in true)
        plain += sum(token for _, token in true)
        weighted += in_row
        ordered += number * in_row
        tail += math.prod(true[-1]) if true else 0
    return TokenSums(wrap(plain), wrap(weighted), wrap(tail), wrap(ordered))


def sample_sums(numbers: Sequence[int]) -> tuple[int, int]:
    """Add up numbers of samples, and a hash of each: both are the same in any order, and of the same samples only."""
    hashes = []
    for number in numbers:
        mixed = number % (1 << 64)
        for shift, factor in HASH:
            mixed = (mixed ^ (mixed >> shift)) * factor % (1 << 64)
        hashes.append(mixed ^ (mixed >> 31))
    return wrap(sum(numbers)), wrap(sum(hashes))


def wrap(value: int) -> int:
    """Bring a number into the range of int64, as its sums do."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def mask_sums(mask: Mask) -> MaskSums:
    """Say where a mask is true."""
    columns = [[column for column, is_true in enumerate(row) if is_true] for row in mask]
    some = [row for row in columns if row]
    return MaskSums(
        size=sum(len(row) for row in mask),
        true=sum(len(row) for row in some),
        rows=len(some),
        first=sum(row[0] for row in some),
        last=sum(row[-1] for row in some),
    )


def nonfinite(values: Sequence[Sequence[float]], mask: Mask | None = None) -> int:
    """Count what is NaN or infinite."""
    return sum(
        not math.isfinite(value) and (mask is None or mask[row][column])
        for row, found in enumerate(values)
        for column, value in enumerate(found)
    )


def logprob_sums(rollout: Sequence[Sequence[float]], train: Sequence[Sequence[float]], mask: Mask) -> LogprobSums:
    """Compare the logprobs of the rollout engine with those of training, both (B, T)."""
    aligned = _pairs(rollout, train, mask, 0)
    differences = [trained - rolled for rolled, trained in aligned]
    count = max(1, len(aligned))
    low, at, high = (_correlation([pair for pair in _pairs(rollout, train, mask, lag) if pair[0] != 0]) for lag in LAGS)
    return LogprobSums(
        count=len(aligned),
        mean_abs=math.fsum(map(abs, differences)) / count,
        mean=math.fsum(differences) / count,
        max_abs=max(map(abs, differences), default=0.0),
        zeros=sum(rolled == 0 and trained < -ZERO_GAP for rolled, trained in aligned),
        correlations=(low, at, high),
    )


def _pairs(
    rollout: Sequence[Sequence[float]], train: Sequence[Sequence[float]], mask: Mask, lag: int
) -> list[tuple[float, float]]:
    """Pair rollout at t with training at t + lag, where both are masked in and finite."""
    rows = (
        (rolled[column], trained[column + lag])
        for rolled, trained, true in zip(rollout, train, mask, strict=True)
        for column in range(max(0, -lag), len(rolled) - max(0, lag))
        if true[column] and true[column + lag]
    )
    return [pair for pair in rows if all(map(math.isfinite, pair))]


def _correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Give Pearson's correlation."""
    if len(pairs) < CORRELATED:
        return None
    means = [math.fsum(values) / len(pairs) for values in zip(*pairs, strict=True)]
    centred = [(left - means[0], right - means[1]) for left, right in pairs]
    squares = [math.fsum(value * value for value in values) for values in zip(*centred, strict=True)]
    scale = math.sqrt(squares[0]) * math.sqrt(squares[1])
    return math.fsum(left * right for left, right in centred) / scale if scale > 0 else None
