"""Requests as columns of whole numbers, by numpy; what cannot be is left out and counted, never guessed.

It is imported by the flusher with the first requests: ``import otel_rl`` does without numpy.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple
from zlib import crc32

import numpy as np

from otel_rl.requests.fields import (
    COUNTS,
    ERROR,
    FAILED,
    FINISH,
    ID,
    KIND,
    LARGEST,
    SLACK_NS,
    TIMES,
    TYPES,
    WHOLE,
    RequestNumbers,
    cleaned,
    indices,
    is_failed,
)
from otel_rl.requests.queue import UNKNOWN, Request, Values

Column = Any
"""An array of whole numbers of 64 bits."""
MOST_TOKENS: Final = 1 << 40
UNREADABLE: Final = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""A number of another library raises these when it is read: a RuntimeError if its memory is gone."""
FACTORS: Final = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53
"""Factors of MurmurHash3's finalizer (public domain), which spreads the close hashes of consecutive ids."""
NUMBERS: Final = indices(*WHOLE)
TEXTS: Final = indices(*(name for name in Request._fields if name not in WHOLE))
"""These, and whether it is streamed."""
SUBMITTED, ENDED, SCHEDULED, FIRST, LAST = range(len(TIMES))
BEGINS: Final = [SUBMITTED, SUBMITTED, SUBMITTED, SCHEDULED, FIRST, LAST]
"""Begins of the durations up to ``decode`` in ``RequestNumbers``, and of the time from the last token to the end."""
ENDS: Final = [ENDED, FIRST, SCHEDULED, FIRST, LAST, ENDED]
SLACKS: Final = np.array([[SLACK_NS], [SLACK_NS], [SLACK_NS], [0], [0], [SLACK_NS]])
LEAST: Final = np.array([[1], [1], [0], [0]])
"""The least counts that a request has if it did not fail."""


class Derived:
    """What follows from requests of one kind, by column."""

    __slots__ = ("columns", "matrix", "problems")

    def __init__(self, matrix: Any, problems: Mapping[str, int]) -> None:
        """Hold columns.

        Args:
            matrix: one row for each field of ``RequestNumbers``.
            problems: requests by what is wrong with them: a word of docs/requests.md.
        """
        self.matrix = matrix
        self.columns: Any = RequestNumbers._make(matrix)
        """A ``RequestNumbers`` whose fields are the columns."""
        self.problems = problems

    def of(self, place: int) -> RequestNumbers:
        """Return the numbers of one request."""
        return RequestNumbers._make(self.matrix[:, place].tolist())


@dataclass(eq=False)
class RequestBatch:
    """Clean requests, at least one, with their parents."""

    values: list[Values]
    parents: list[Any]
    fields: list[tuple[Any, ...]]
    """The same values, field by field."""
    numbers: Any
    """The fields that are whole numbers, one row for each, in the order of ``WHOLE``."""

    @property
    def ids(self) -> tuple[str, ...]:
        """Return the requests' own ids."""
        return self.fields[ID]

    @cached_property
    def finishes(self) -> Counter[str]:
        """Return how many ended for which reason."""
        return Counter(self.fields[FINISH])

    @cached_property
    def has_failed(self) -> bool:
        """Return whether any request was aborted, ran out of time or failed."""
        return not FAILED.isdisjoint(self.finishes) or any(self.fields[ERROR])

    @property
    def has_unknown_end(self) -> bool:
        """Return whether a request ended without a reason from the engine and without an error.

        Its limit may have cut it.
        """
        finishes, errors = self.fields[FINISH], self.fields[ERROR]
        return "" in self.finishes and any(
            not finish and not error for finish, error in zip(finishes, errors, strict=True)
        )

    def ended_between(self, after: int, until: int) -> list[int]:
        """Return which requests ended after a time, and not after another."""
        ends = self.numbers[ENDED]
        places: list[int] = np.flatnonzero((ends > after) & (ends <= until)).tolist()
        return places

    def parts(self) -> list[RequestBatch]:
        """Part the requests by the labels of their metrics."""
        kinds = list(zip(*(self.fields[field] for field in KIND), strict=True))
        parts: dict[Any, list[int]] = {kind: [] for kind in set(kinds)}
        if len(parts) == 1:
            return [self]
        for place, kind in enumerate(kinds):
            parts[kind].append(place)
        return [self.only(places) for places in sorted(parts.values())]

    def only(self, places: list[int]) -> RequestBatch:
        """Return some of the requests."""
        values = [self.values[place] for place in places]
        parents = [self.parents[place] for place in places]
        return RequestBatch(values, parents, list(zip(*values, strict=True)), self.numbers[:, places])

    def derive(self, begun: int, now: int) -> Derived:
        """Derive the times of each request and judge its numbers.

        Args:
            begun: the begin of the process, monotonic ns: no time can be earlier, but 0, which is not known.
            now: the present, monotonic ns: no time can be later.
        """
        given, counts = self.numbers[: len(TIMES)], self.numbers[len(TIMES) : len(TIMES) + len(COUNTS)]
        times = np.where((given < begun) | (given > now), 0, given)
        begins, ends = times[BEGINS], times[ENDS]
        durations = ends - begins
        durations[(durations < 0) & (durations >= -SLACKS)] = 0
        is_known = (begins != 0) & (ends != 0)
        is_reversed = is_known & (durations < 0)
        durations[~is_known | is_reversed] = UNKNOWN
        is_possible = (counts >= LEAST) & (counts < MOST_TOKENS)
        if self.has_failed:
            is_possible[1] |= np.array(list(map(is_failed, self.values))) & (counts[1] == 0)
        known = np.where(is_possible, counts, UNKNOWN)
        known[2][(known[0] >= 0) & (known[2] > known[0])] = UNKNOWN
        output, decode = known[1], durations[4]
        tpot = np.where((output > 1) & (decode >= 0), decode // np.maximum(output - 1, 1), UNKNOWN)
        problems = {
            "impossible_time": (times != given).any(0),
            "unfinished": given[ENDED] == 0,
            "reversed": is_reversed.any(0),
            "tokens": (known[:3] != counts[:3]).any(0),
        }
        matrix = np.concatenate([durations[:5], tpot[None], known, times[[SCHEDULED, ENDED]]])
        return Derived(matrix, {reason: int(is_wrong.sum()) for reason, is_wrong in problems.items()})

    def scores(self, seed: int, first: int) -> Column:
        """Return a number of 63 bits for each request, evenly spread, that depends only on its id and the seed.

        Args:
            seed: of the rollout.
            first: how many requests the rollout had before: one without an id is scored by its number.
        """
        ids = self.ids if all(self.ids) else [one or str(first + place) for place, one in enumerate(self.ids)]
        texts = (one.encode("utf-8", "surrogatepass") for one in ids)
        mixed = np.fromiter(map(crc32, texts), np.uint64, len(ids)) ^ np.uint64(seed)
        for factor in FACTORS:
            mixed = (mixed ^ (mixed >> np.uint64(33))) * np.uint64(factor)
        return ((mixed ^ (mixed >> np.uint64(33))) >> np.uint64(1)).astype(np.int64)


class Bins(NamedTuple):
    """A histogram of one column: counts by bucket, and what the buckets do not say."""

    counts: list[int]
    total: int
    low: int
    high: int


def make_batch(values: list[Values], parents: list[Any], problems: Counter[str]) -> RequestBatch | None:
    """Make clean requests of what a reader gave, which may be anything; None where none is left.

    Args:
        values: what a reader gave.
        parents: the span that each belongs to.
        problems: counts what had to be changed: ``no_request``, ``not_a_number``.
    """
    found = _split(values)
    if found is None:
        kept = [(one, parent) for one, parent in zip(values, parents, strict=True) if _is_request(one)]
        problems["no_request"] += len(values) - len(kept)
        if not kept:
            return None
        values, parents = [cleaned(one, problems) for one, _ in kept], [parent for _, parent in kept]
        fields = list(zip(*values, strict=True))
        numbers = np.array([fields[place] for place in NUMBERS], object)
        found = fields, numbers.clip(-LARGEST, LARGEST).astype(np.int64)  # impossible, as what is out of range is
    return RequestBatch(values, parents, *found)


def _is_request(one: Any) -> bool:
    return type(one) is Request or (type(one) is tuple and len(one) == len(TYPES))


def _split(values: list[Any]) -> tuple[list[tuple[Any, ...]], Any] | None:
    """Return the values field by field, and the whole numbers among them; None unless each is what it should be."""
    if not set(map(type, values)) <= {Request, tuple} or set(map(len, values)) != {len(TYPES)}:
        return None
    fields = list(zip(*values, strict=True))
    if any(set(map(type, fields[place])) != {TYPES[place]} for place in TEXTS):
        return None
    try:  # it takes whole numbers of any type, and nothing else
        return fields, np.array([array("q", fields[place]) for place in NUMBERS])
    except UNREADABLE:
        return None


def joined(derived: Iterable[Derived]) -> Any:
    """Return one ``RequestNumbers`` whose columns join those of all these."""
    return RequestNumbers._make(np.concatenate([one.matrix for one in derived], axis=1))


def bins(column: Column, bounds: tuple[int, ...]) -> Bins | None:
    """Sort the known values of a column into buckets; None where no value is known."""
    known = np.sort(column[column >= 0])
    if not known.size:
        return None
    counts = np.diff(np.searchsorted(known, _bounds(bounds), side="right"), prepend=0, append=known.size)
    return Bins(counts.tolist(), int(known.sum()), int(known[0]), int(known[-1]))


@lru_cache(maxsize=64)
def _bounds(bounds: Sequence[int]) -> Column:
    return np.array(bounds, np.int64)
