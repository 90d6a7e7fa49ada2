"""Which requests of a rollout become spans: failed ones, the extreme ones, and a uniform sample; all within limits."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Any, Final

from otel_rl.records import Labels
from otel_rl.requests.bulk import bulk
from otel_rl.requests.columns import Column, Derived, Numbers, Table, cleaned, has_error, is_failed
from otel_rl.requests.queue import Row


class Kept:
    """A request that may become a span, with all that is needed to make it."""

    __slots__ = ("labels", "number", "numbers", "parent", "row", "why")

    def __init__(self, number: int, row: Row, parent: Any, numbers: Sequence[int], labels: Labels) -> None:
        self.number = number
        """Of the row within the rollout."""
        self.row: Any = row
        """A ``Request`` once it is chosen, ``numbers`` then ``Numbers``: there are far more candidates."""
        self.parent = parent
        """Its place: a ``Stage`` or a ``Place``."""
        self.numbers: Any = numbers
        self.labels = labels
        """Of the series that it counts in."""
        self.why = ""
        """Words of ``rl.request.kept``, with commas between, once it is chosen."""


_NUMBER: Final = attrgetter("number")


@dataclass(frozen=True)
class Policy:
    """How many requests of each kind become spans; docs/requests.md says it to the user."""

    failed: int
    """Errors, aborts and timeouts, the first ones."""
    extreme: int
    """Slowest by duration, slowest by TTFT, longest outputs: so many of each."""
    sample: int
    """Chosen by a hash of step and request id, so that a repetition chooses the same."""
    total: int
    """Of a step on one process."""


class Offered(dict[int, Kept]):
    """The candidates among the rows of one table, by place; each is made when somebody first looks at it."""

    def __init__(self, table: Table, derived: Derived, first: int, labels: Labels) -> None:
        self._table = table
        self._derived = derived
        self.first = first
        """The number of the first row within the rollout."""
        self._labels = labels

    def __missing__(self, place: int) -> Kept:
        table, numbers = self._table, self._derived.of(place)
        made = Kept(self.first + place, table.rows[place], table.parents[place], numbers, self._labels)
        self[place] = made
        return made


class _Best:
    """The requests with the largest values; of equal ones the earliest."""

    __slots__ = ("_heap", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._heap: list[tuple[int, int, Kept]] = []

    def offer(self, column: Column, offered: Offered) -> None:
        """Take in what belongs to the largest."""
        heap, size, first = self._heap, self._size, offered.first
        if len(heap) + len(column) <= size:  # there is room for all: they need no order yet
            heap += [(value, -first - place, offered[place]) for place, value in enumerate(column) if value >= 0]
            return
        if not size:
            return
        heapq.heapify(heap)
        floor = heap[0][0] if len(heap) == size else -1
        for place in bulk.largest(column, floor, size):
            value, order = column[place], -first - place
            if len(heap) < size:
                heapq.heappush(heap, (value, order, offered[place]))
            elif (value, order) > heap[0][:2]:
                heapq.heapreplace(heap, (value, order, offered[place]))

    def rows(self) -> list[Kept]:
        """Give them, the largest first."""
        return [one for _, _, one in sorted(self._heap, reverse=True)]


class Candidates:
    """What may become spans of one rollout, as far as it has gone: at most what the policy allows is held."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._failed: list[Kept] = []
        self._kinds = {
            "slowest": _Best(policy.extreme),
            "ttft": _Best(policy.extreme),
            "longest": _Best(policy.extreme),
            "sample": _Best(policy.sample),
        }

    def add(self, table: Table, derived: Derived, scores: Column, first: int, labels: Labels = ()) -> None:
        """Take further requests in.

        Args:
            table: the requests.
            derived: their times.
            scores: of their ids.
            first: how many requests the rollout had before.
            labels: of their metrics.
        """
        offered = Offered(table, derived, first, labels)
        room = self._policy.failed - len(self._failed)
        if room > 0 and table.has_failed():
            over = zip(table.rows, table.column("ended"), strict=True)
            places = (place for place, (row, ended) in enumerate(over) if ended and is_failed(row))
            self._failed += [offered[place] for place in islice(places, room)]
        columns = (derived.columns.duration, derived.columns.ttft, derived.columns.output, scores)
        for best, column in zip(self._kinds.values(), columns, strict=True):
            best.offer(column, offered)

    def chosen(self, room: int) -> list[Kept]:
        """Choose at most ``room`` requests, the failed first, then kind by kind; give them in the order they came."""
        found: list[Kept] = []
        kinds = {"failed": self._failed, **{kind: best.rows() for kind, best in self._kinds.items()}}
        for kind, rows in kinds.items():
            for one in rows:
                if one.why:
                    one.why = f"{one.why},{kind}"
                elif len(found) < room:
                    one.why = kind
                    found.append(one)
        for one in found:
            one.row, one.numbers = cleaned(one.row), Numbers._make(one.numbers)
        return sorted(found, key=_NUMBER)


def outcomes(table: Table) -> dict[str, int]:
    """Count what became of requests: ``aborted``, ``timed_out``, ``clipped``, ``error``; what never was is left out."""
    finishes = table.finishes
    found = {
        "aborted": finishes.get("abort", 0),
        "timed_out": finishes.get("timeout", 0),
        "clipped": finishes.get("length", 0),
        "error": sum(map(has_error, table.rows)) if table.has_failed() else 0,
    }
    return {kind: number for kind, number in found.items() if number}
