"""Which requests of a rollout become spans: failed ones, the extreme ones, and a uniform sample; all within limits."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from otel_rl.records import Labels
from otel_rl.requests.fields import RequestNumbers, cleaned, has_error, is_failed

if TYPE_CHECKING:
    from otel_rl.requests.columns import Column, Derived, RequestBatch


@dataclass(eq=False, slots=True)
class Kept:
    """A request that may become a span, with all that is needed to make it."""

    number: int
    """Number of the request within the rollout."""
    request: Any
    """A ``Request`` once it is chosen, until then ``Values``: there are far more candidates."""
    parent: Any
    """A ``Stage`` or a ``ForeignParent``."""
    numbers: RequestNumbers
    labels: Labels
    """Labels of the series that it counts in."""
    why: str = ""
    """Words of ``rl.request.kept``, with commas between, once it is chosen."""


_NUMBER: Final = attrgetter("number")


@dataclass(frozen=True)
class Policy:
    """How many requests of each kind become spans; docs/requests.md says it to the user."""

    failed: int
    """How many of the first errors, aborts and timeouts."""
    extreme: int
    """How many of the slowest by duration, of the slowest by TTFT, and of the longest outputs."""
    sample: int
    """How many are chosen by a hash of step and request id, so that a repetition chooses the same."""
    total: int
    """Most spans of a step on one process."""


class Best:
    """The requests with the largest values; of equal ones the earliest."""

    __slots__ = ("_heap", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._heap: list[tuple[int, int, Kept]] = []

    def offer(self, column: Column, first: int, make: Callable[[int], Kept]) -> None:
        """Keep what belongs to the largest; ``first`` is the number of the column's first request in the rollout."""
        heap, size = self._heap, self._size
        if not size:
            return
        floor = heap[0][0] if len(heap) == size else -1
        places = (column > floor).nonzero()[0]
        if len(places) > size:
            largest = column[places]
            largest.partition(len(largest) - size)
            places = places[column[places] >= largest[-size]]  # of ties all
        for place, value in zip(places.tolist(), column[places].tolist(), strict=True):
            order = -first - place
            if len(heap) < size:
                heapq.heappush(heap, (value, order, make(place)))
            elif (value, order) > heap[0][:2]:
                heapq.heapreplace(heap, (value, order, make(place)))

    def largest(self) -> list[Kept]:
        """Return them, the largest first."""
        return [one for _, _, one in sorted(self._heap, reverse=True)]


class Candidates:
    """What may become spans of one rollout, so far: at most what the policy allows is kept."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._failed: list[Kept] = []
        self._kinds = {
            "slowest": Best(policy.extreme),
            "ttft": Best(policy.extreme),
            "longest": Best(policy.extreme),
            "sample": Best(policy.sample),
        }

    def add(self, batch: RequestBatch, derived: Derived, scores: Column, first: int, labels: Labels = ()) -> None:
        """Consider further requests.

        Args:
            batch: the requests.
            derived: their times.
            scores: of their ids.
            first: how many requests the rollout had before.
            labels: of their metrics.
        """

        @cache
        def make(place: int) -> Kept:
            return Kept(first + place, batch.values[place], batch.parents[place], derived.of(place), labels)

        room = self._policy.failed - len(self._failed)
        if room > 0 and batch.has_failed:
            ends = derived.columns.ended.tolist()
            places = (place for place, one in enumerate(batch.values) if ends[place] and is_failed(one))
            self._failed += map(make, islice(places, room))
        columns = (derived.columns.duration, derived.columns.ttft, derived.columns.output, scores)
        for best, column in zip(self._kinds.values(), columns, strict=True):
            best.offer(column, first, make)

    def chosen(self, room: int) -> list[Kept]:
        """Return at most ``room`` requests, the failed first, then kind by kind; in the order they came."""
        found: list[Kept] = []
        kinds = {"failed": self._failed, **{kind: best.largest() for kind, best in self._kinds.items()}}
        for kind, candidates in kinds.items():
            for one in candidates:
                if one.why:
                    one.why = f"{one.why},{kind}"
                elif len(found) < room:
                    one.why = kind
                    found.append(one)
        for one in found:
            one.request = cleaned(one.request)
        return sorted(found, key=_NUMBER)


def outcomes(batch: RequestBatch) -> dict[str, int]:
    """Count what became of requests: ``aborted``, ``timed_out``, ``clipped``, ``error``; what never was is left out."""
    finishes = batch.finishes
    found = {
        "aborted": finishes.get("abort", 0),
        "timed_out": finishes.get("timeout", 0),
        "clipped": finishes.get("length", 0),
        "error": sum(map(has_error, batch.values)) if batch.has_failed else 0,
    }
    return {kind: number for kind, number in found.items() if number}
