"""The numbers of the correctness ledger by their definition, on plain lists; tests compare other code with it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from otel_rl.analysis.checksums import CORRELATED, HASH, LAGS, ZERO_GAP, LogprobSums, MaskSums, TokenSums, wrap

Mask = Sequence[Sequence[bool]]


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
