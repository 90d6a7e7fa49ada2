"""Which requests of a rollout become spans: failed ones, the extreme ones, and a uniform sample; all within limits."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from types import ModuleType
from typing import Any, NamedTuple

from otel_rl.requests import Request
from otel_rl.rollouts.columns import Column, Derived, Table, is_failed


class Kept(NamedTuple):
    """A request that may become a span."""

    row: Request
    parent_id: int
    why: str
    """Words of ``rl.request.kept``, with commas between."""


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


class _Best:
    """The requests with the largest values; of equal ones the earliest."""

    __slots__ = ("_heap", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._heap: list[tuple[int, int, Request, int]] = []

    def offer(self, module: ModuleType, column: Column, table: Table, first: int) -> None:
        """Take in what belongs to the largest; ``first`` is the number of the first row within the rollout."""
        heap, size = self._heap, self._size
        if not size:
            return
        floor = heap[0][0] if len(heap) == size else -1
        for place in module.largest(column, floor, size):
            item = (int(column[place]), -first - place, table.rows[place], table.parents[place])
            if len(heap) < size:
                heapq.heappush(heap, item)
            elif item > heap[0]:
                heapq.heapreplace(heap, item)

    def rows(self) -> Iterable[tuple[int, Request, int]]:
        """Give number, row and parent, the largest first."""
        return ((-order, row, parent) for _, order, row, parent in sorted(self._heap, reverse=True))


class Candidates:
    """What may become spans of one rollout, as far as it has gone: at most what the policy allows is held."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._failed: list[tuple[int, Request, int]] = []
        self._kinds = {
            "slowest": _Best(policy.extreme),
            "ttft": _Best(policy.extreme),
            "longest": _Best(policy.extreme),
            "sample": _Best(policy.sample),
        }

    def add(self, module: ModuleType, table: Table, derived: Derived, scores: Column, first: int) -> None:
        """Take further requests in.

        Args:
            module: the arithmetic that made the columns.
            table: the requests.
            derived: their times.
            scores: of their ids.
            first: how many requests the rollout had before.
        """
        room = self._policy.failed - len(self._failed)
        if room > 0 and table.has_failed():
            places = (place for place, row in enumerate(table.rows) if row.ended and is_failed(row))
            chosen = islice(places, room)
            self._failed += [(first + place, table.rows[place], table.parents[place]) for place in chosen]
        columns: dict[str, Any] = {
            "slowest": derived.duration,
            "ttft": derived.ttft,
            "longest": derived.output,
            "sample": scores,
        }
        for kind, column in columns.items():
            self._kinds[kind].offer(module, column, table, first)

    def chosen(self, room: int) -> list[Kept]:
        """Choose at most ``room`` requests, the failed first, then kind by kind; give them in the order they came."""
        found: dict[int, tuple[Request, int]] = {}
        why: dict[int, list[str]] = {}
        kinds = {"failed": self._failed, **{kind: best.rows() for kind, best in self._kinds.items()}}
        for kind, rows in kinds.items():
            for number, row, parent in rows:
                if number in found or len(found) < room:
                    found[number] = row, parent
                    why.setdefault(number, []).append(kind)
        return [Kept(*found[number], ",".join(why[number])) for number in sorted(found)]


def outcomes(table: Table) -> Counter[str]:
    """Count what became of requests: ``aborted``, ``timed_out``, ``clipped``, ``error``; what never was is left out."""
    finishes = table.finishes
    found = {
        "aborted": finishes["abort"],
        "timed_out": finishes["timeout"],
        "clipped": finishes["length"],
        "error": sum(row.finish == "error" or bool(row.error) for row in table.rows) if table.has_failed() else 0,
    }
    return Counter({kind: number for kind, number in found.items() if number})
