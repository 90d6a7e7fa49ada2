"""The ledger's rows of one batch: micro-batches are joined until the whole batch has passed a boundary."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby
from math import gcd
from typing import Any, Final

from otel_rl.analysis.checksums import LogprobSums, MaskSums, Pairs, TokenSums, shape_checksum, wrap
from otel_rl.analysis.ledger import Passage

MOST_PASSES: Final = 16
"""Times that a step may use its batch and have each compared."""


@dataclass(frozen=True, slots=True)
class BatchCall:
    """What one call showed of a batch, or of a part of it."""

    boundary: str
    rows: int = 0
    """Number of samples; packed sequences have more of them than an array has rows."""
    model: Any = None
    """The model that handles it: parts of a batch are joined only where the same one has seen them."""
    logprobs: frozenset[str] = frozenset()
    """Kinds of log-probabilities; one model may compute old and reference ones by turns."""
    samples: tuple[int, int] | None = None
    """Sum of the samples' numbers, and of their hashes; None of samples without numbers."""
    kind: str = ""
    """Kind of the token ids' type."""
    is_response: bool = False
    """The sums are of responses, not of whole sequences: the two are never compared."""
    tokens: TokenSums | None = None
    mask: MaskSums | None = None
    numbering: str = "place"
    """What `TokenSums.ordered` counts by: the row's `place`, the sample's `number`, or `none`."""
    nonfinite: int = 0
    misfit: int = 0
    pairs: Pairs | None = None
    is_updated: bool = False
    """Whether they are of a policy that may have been updated since the rollout."""


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """A row, and how many samples it is of."""

    row: Passage[int]
    samples: int


class SharedBatch:
    """The calls that saw the same batch, in the order in which it passed them."""

    def __init__(self, step: int, loop: str) -> None:
        self.step = step
        self.loop = loop
        self.written = 0
        """Rows that have been written."""
        self.has_news = False
        """A call was added since the rows were written last."""
        self.faults: set[tuple[str, str]] = set()
        """Faults that have been, by boundary."""
        self._calls: dict[tuple[str, int, frozenset[str]], list[BatchCall]] = {}

    def add(self, call: BatchCall) -> None:
        self._calls.setdefault((call.boundary, id(call.model), call.logprobs), []).append(call)
        self.has_news = True

    def rows(self, rank: int, *, is_over: bool) -> list[LedgerRow]:
        # what shows no samples, as a loss alone, is judged and is part of no pass
        shown = {key: [call for call in found if call.rows] for key, found in self._calls.items()}
        calls = [call for parts in shown.values() for call in parts]
        numbering = {call.numbering for call in calls if call.tokens is not None}
        is_ordered = len(numbering) == 1 and numbering != {"none"}
        whole = next((parts for parts in shown.values() if any(map(_is_comparable, parts))), [BatchCall("")])
        size, numbers = sum(call.rows for call in whole), _samples(whole)
        is_response = whole[0].is_response
        made: list[LedgerRow] = []
        for key, found in self._calls.items():
            boundary, parts = key[0], shown[key]
            samples = sum(call.rows for call in parts)
            passes, is_complete = _passes(parts, size)
            is_complete &= bool(passes) and all(call.is_response == is_response for call in parts)
            head = Passage(
                step=self.step,
                rank=rank,
                boundary=boundary,
                nonfinite=sum(call.nonfinite for call in found),
                misfit=sum(call.misfit for call in found),
                logprobs=_logprobs(found),
                is_updated=any(call.is_updated for call in found),
            )
            if not is_complete and is_over:
                made.append(LedgerRow(head, samples))
                continue
            for number, part in enumerate(passes[:MOST_PASSES]):
                row = head if not number else Passage(step=self.step, rank=rank, boundary=boundary)
                if None in (numbers, _samples(part)) or numbers == _samples(part):  # else they are other samples
                    row = _with_sums(row, part, is_ordered=is_ordered)
                made.append(LedgerRow(row, size))
        return made


def _samples(calls: list[BatchCall]) -> tuple[int, int] | None:
    """Return which samples they showed, in any order; None where some have no numbers."""
    known = [call.samples for call in calls if call.samples is not None]
    return (
        (wrap(sum(one[0] for one in known)), wrap(sum(one[1] for one in known))) if len(known) == len(calls) else None
    )


def _is_comparable(call: BatchCall) -> bool:
    return call.tokens is not None or call.mask is not None


def _passes(calls: list[BatchCall], size: int) -> tuple[list[list[BatchCall]], bool]:
    """Cut calls into parts that are the whole batch each; returns whether they end with one.

    Where each micro-batch is shown several times, one after the other, two models take turns that nothing
    distinguishes, or one passes over each again: those are passes side by side, if they are all alike then.
    """
    times = gcd(*(len(list(run)) for _, run in groupby(calls, _content)))
    for turns in range(1, times + 1):
        if times % turns == 0:
            passes, is_complete = _cut(calls[::turns], size)
            if is_complete and len({tuple(map(_content, one)) for one in passes}) == 1:
                return [one for one in passes for _ in range(turns)], True
    return _cut(calls, size)


def _content(call: BatchCall) -> tuple[object, ...]:
    """Return what distinguishes a micro-batch from the next one, however it is padded."""
    return call.rows, call.samples, call.tokens or call.mask


def _cut(calls: list[BatchCall], size: int) -> tuple[list[list[BatchCall]], bool]:
    passes: list[list[BatchCall]] = []
    part: list[BatchCall] = []
    for call in calls:
        part.append(call)
        rows = sum(one.rows for one in part)
        if rows > size:
            return passes, False
        if rows == size:
            passes.append(part)
            part = []
    return passes, not part


def _with_sums(row: Passage[int], part: list[BatchCall], *, is_ordered: bool) -> Passage[int]:
    tokens, masks = [call.tokens for call in part], [call.mask for call in part]
    kinds = {call.kind for call in part if call.kind}
    rows = sum(call.rows for call in part)
    return replace(
        row,
        shape=shape_checksum((rows,), kinds.pop()) if len(kinds) == 1 else None,
        tokens=_tokens(part, is_ordered=is_ordered) if tokens and None not in tokens else None,
        mask=reduce(MaskSums.joined, [mask for mask in masks if mask]) if masks and None not in masks else None,
    )


def _tokens(part: list[BatchCall], *, is_ordered: bool) -> TokenSums:
    sums, rows = TokenSums(0, 0, 0, 0), 0
    for call in part:
        if call.tokens is not None:
            sums = sums.joined(call.tokens, rows if call.numbering == "place" else 0)
            rows += call.rows
    return sums if is_ordered else replace(sums, ordered=0)


def _logprobs(calls: list[BatchCall]) -> LogprobSums | None:
    found = [call.pairs for call in calls if call.pairs is not None]
    return reduce(Pairs.joined, found).sums if found else None
