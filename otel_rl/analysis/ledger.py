"""The correctness ledger: what is wrong with a batch at one boundary, and what two boundaries disagree about.

A boundary is a place that a batch passes: rollout, logprob, train. A field that a boundary does not have is None; then
the boundaries before and after it are compared. A framework that shuffles by design gives no tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Final, Generic, TypeVar

from otel_rl.analysis.checksums import LAGS, LogprobSums, MaskSums, TokenSums, wrap

RankT = TypeVar("RankT", bound=Hashable)
FieldT = TypeVar("FieldT")
Masked = tuple[MaskSums, TokenSums | None]

LOGPROB_MEAN_ABS: Final = 0.2
"""Larger differences are faults; smaller ones are rounding, other kernels and a policy a few updates old.

Healthy runs show 0.01 to 0.04, a shift by one about 1.
"""
ZERO_SHARE: Final = 0.01
LAG_MARGIN: Final = 0.1
"""Logprobs are shifted if the correlation at another lag is higher by this."""
SAMPLE_NUMBERS: Final = 9
LEAST_TOKENS: Final = 16
"""Logprobs of fewer tokens are not judged."""


class Fault(Enum):
    """Kinds of mismatches, in words for a person."""

    SHAPE = "other shape or type"
    SHIFTED_TOKENS = "tokens shifted by one"
    PERMUTED_BATCH = "permuted batch"
    REORDERED_TOKENS = "tokens in another order"
    OTHER_TOKENS = "other tokens"
    SHIFTED_MASK = "mask off by one"
    OTHER_MASK = "other mask"
    NONFINITE = "values that are NaN or infinite"
    SHIFTED_LOGPROBS = "logprobs shifted by one"
    ZERO_LOGPROBS = "logprobs padded with zeros"
    OTHER_LOGPROBS = "logprobs of rollout and training far apart"
    SHARED_GROUP = "one group id for two prompts"
    OTHER_GROUP = "sample in another group"
    LARGE_GROUP = "more samples in a group than were asked for"
    REPEATED_SAMPLE = "the same sample twice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage(Generic[RankT]):
    """What one rank recorded of one batch at one boundary; ``checksums`` defines the numbers."""

    step: int
    rank: RankT
    boundary: str
    shape: int | None = None
    tokens: TokenSums | None = None
    mask: MaskSums | None = None
    nonfinite: int = 0
    misfit: int = 0
    """Number of arrays of the batch whose shape does not fit the others'."""
    logprobs: LogprobSums | None = None
    is_updated: bool = False
    """The policy may have been updated since the rollout, so logprobs may be far apart."""


@dataclass(frozen=True, slots=True)
class Mismatch(Generic[RankT]):
    """One fault of one step, and the ranks that have it."""

    step: int
    boundary: str
    """One boundary, or `rollout -> train` if two disagree."""
    fault: Fault
    ranks: tuple[RankT, ...]
    of_ranks: int


def check(passages: Iterable[Passage[RankT]]) -> list[Mismatch[RankT]]:
    """Find every mismatch, in the order of steps.

    Args:
        passages: those of one rank and step in the order in which its batch passed the boundaries.
    """
    batches: defaultdict[int, defaultdict[RankT, list[Passage[RankT]]]] = defaultdict(lambda: defaultdict(list))
    for passage in passages:
        batches[passage.step][passage.rank].append(passage)
    found: list[Mismatch[RankT]] = []
    for step, by_rank in sorted(batches.items()):
        who: defaultdict[tuple[str, Fault], list[RankT]] = defaultdict(list)
        for rank, batch in by_rank.items():
            for boundary, fault in dict.fromkeys(_faults(batch)):
                who[boundary, fault].append(rank)
        found += [Mismatch(step, *place, tuple(ranks), len(by_rank)) for place, ranks in who.items()]
    return found


def inspect(passage: Passage[RankT]) -> list[Fault]:
    """Return what is wrong with one passage by itself."""
    faults = [Fault.SHAPE] if passage.misfit else []
    faults += [Fault.NONFINITE] if passage.nonfinite else []
    return faults + (_logprob_faults(passage.logprobs, passage.is_updated) if passage.logprobs else [])


def _faults(batch: Sequence[Passage[RankT]]) -> Iterator[tuple[str, Fault]]:
    for passage in batch:
        for fault in inspect(passage):
            yield passage.boundary, fault
    yield from _between(batch, lambda one: one.shape, _shape_fault)
    masks = list(_between(batch, _masked, _mask_fault))
    yield from masks
    moved = {place for place, _ in masks}  # other tokens under another mask are no second fault
    tokens = _between(batch, lambda one: one.tokens, _token_fault)
    yield from ((place, fault) for place, fault in tokens if place not in moved)


def _masked(passage: Passage[RankT]) -> Masked | None:
    return None if passage.mask is None else (passage.mask, passage.tokens)


def _between(
    batch: Iterable[Passage[RankT]],
    field: Callable[[Passage[RankT]], FieldT | None],
    judge: Callable[[FieldT, FieldT], Fault | None],
) -> Iterator[tuple[str, Fault]]:
    """Compare each boundary that has the field with the one before it that has it."""
    known = [(passage.boundary, value) for passage in batch if (value := field(passage)) is not None]
    for (before, left), (after, right) in pairwise(known):
        fault = judge(left, right)
        if fault is not None:
            yield f"{before} -> {after}", fault


def _shape_fault(before: int, after: int) -> Fault | None:
    return None if before == after else Fault.SHAPE


def _token_fault(before: TokenSums, after: TokenSums) -> Fault | None:
    if before == after:
        return None
    if (before.plain, before.weighted, before.tail) == (after.plain, after.weighted, after.tail):
        return Fault.PERMUTED_BATCH  # checked before shifts, which rows of one token each look like
    if _is_left_shift(before, after) or _is_left_shift(after, before):
        return Fault.SHIFTED_TOKENS
    return Fault.OTHER_TOKENS if before.plain != after.plain else Fault.REORDERED_TOKENS


def _is_left_shift(before: TokenSums, after: TokenSums) -> bool:
    """Return whether every id is one column further left, so that each loses its weight once."""
    shifted = wrap(before.weighted - before.plain)
    return shifted in (after.weighted, wrap(after.weighted - after.tail))


def _mask_fault(left: Masked, right: Masked) -> Fault | None:
    """Compare masks by where they are true: they may be padded differently, and equal tokens make them equal."""
    (before, tokens), (after, tokens_after) = left, right
    if tokens is not None and tokens == tokens_after:
        return None
    if (before.true, before.rows, before.first, before.last) == (after.true, after.rows, after.first, after.last):
        return None
    moved = (after.first - before.first, after.last - before.last)
    by_one = (0, before.rows, -before.rows)
    if before.rows and before.rows == after.rows and moved != (0, 0) and all(shift in by_one for shift in moved):
        return Fault.SHIFTED_MASK
    is_same = (before.true, before.rows, moved[0]) == (after.true, after.rows, moved[1])
    return None if is_same and tokens and tokens_after else Fault.OTHER_MASK  # padded differently: compare tokens


def _logprob_faults(found: LogprobSums, is_updated: bool) -> list[Fault]:
    if found.count < LEAST_TOKENS:
        return []
    faults = [Fault.ZERO_LOGPROBS] if found.zeros > ZERO_SHARE * found.count else []
    if found.mean_abs <= LOGPROB_MEAN_ABS:
        return faults
    if _is_shifted(found):
        return [*faults, Fault.SHIFTED_LOGPROBS]
    return faults or ([] if is_updated else [Fault.OTHER_LOGPROBS])


def _is_shifted(found: LogprobSums) -> bool:
    aligned = found.correlations[LAGS.index(0)]
    best = max((value for value in found.correlations if value is not None), default=0.0)
    return found.lag not in (None, 0) and best - (aligned or 0.0) > LAG_MARGIN


# --- single samples: processes see other parts of a batch, in another order -------------------------------------------


@dataclass(frozen=True, slots=True)
class SampleSums:
    """One sample at one boundary."""

    prompt: int
    """Tokens of the prompt."""
    response: int
    tokens: TokenSums
    """Sums over prompt and response together; there is one row, so no order of rows."""
    mask: MaskSums
    """Where the tokens of the response are trained on."""
    columns: int
    """The sum of the mask's true columns, which a change between its first and last one shows."""

    def packed(self) -> tuple[int, ...]:
        """Return the numbers that ``unpacked`` reads."""
        tokens, mask = self.tokens, self.mask
        sums = tokens.plain, tokens.weighted, tokens.tail
        return (self.prompt, self.response, *sums, mask.true, mask.first, mask.last, self.columns)


def unpacked(numbers: Sequence[int]) -> SampleSums:
    """Return the sums of a sample that were packed."""
    prompt, response, plain, weighted, tail, true, first, last, columns = numbers
    mask = MaskSums(size=response, true=true, rows=int(true > 0), first=first, last=last)
    return SampleSums(prompt, response, TokenSums(plain, weighted, tail, weighted), mask, columns)


def fault_of_sample(sums: SampleSums) -> Fault | None:
    """Find what is wrong with a sample as it was generated: a response begins with a token of the policy."""
    return Fault.SHIFTED_MASK if sums.mask.rows and sums.mask.first == 1 else None


def fault_between(before: SampleSums, after: SampleSums) -> Fault | None:
    """Find what changed of a sample."""
    if before == after:
        return None
    if (before.prompt, before.response) != (after.prompt, after.response):
        return Fault.SHAPE
    if before.tokens != after.tokens:
        return _fault(*(Passage(step=0, rank=0, boundary="", tokens=one.tokens) for one in (before, after)))
    masks = (Passage(step=0, rank=0, boundary="", mask=one.mask) for one in (before, after))
    return _fault(*masks) or Fault.OTHER_MASK


def _fault(before: Passage[int], after: Passage[int]) -> Fault | None:
    return next((one.fault for one in check([before, after])), None)
