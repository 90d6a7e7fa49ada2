"""Finished requests between an engine's objects and the count: read into rows, which wait where they belong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable
from itertools import chain, islice
from time import sleep
from typing import Any, Final

from otel_rl.guard import attempt, guard
from otel_rl.process.state import state
from otel_rl.records import Noted
from otel_rl.requests.parents import Bucket, key_of, place_of
from otel_rl.requests.queue import Row, native
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage

CHUNK: Final = 500
"""Requests that are counted at once: so few are gone before the garbage collector has looked at them twice."""
SLICE: Final = 250
"""Requests that are read before the interpreter is let go of for a moment: the training thread may wait for it."""
BREATH_S: Final = 0.000_05
"""That moment."""
PART: Final = 20_000
"""Pieces of what waits that are freed at once."""
SEQUENCES: Final = frozenset((list, tuple))


class Reading:
    """The requests that were read and are not counted; used by the flusher only."""

    def __init__(
        self,
        count: Callable[[Iterable[Bucket]], object],
        bad: Callable[[Counter[str]], object],
        over: Container[int],
    ) -> None:
        """Begin without requests.

        Args:
            count: takes those that wait together.
            bad: takes how many could not be read.
            over: trace ids of the steps that have ended.
        """
        self._count, self._bad, self._over = count, bad, over
        self._pending: dict[Any, Bucket] = {}
        self._waiting = 0
        self._pause = SLICE
        """So many requests wait when the interpreter is let go of."""
        self._parent: Any = self
        """The parent that came last: the next requests most often have the same,"""
        self._bucket = Bucket(None, None)
        """and wait here."""

    def read(self, noted: Noted, *, hurry: bool) -> None:
        """Read finished requests, and count them once they are enough; see ``RequestFold.read``."""
        if state.noted is noted:
            state.noted = Noted()
        while noted:
            self._try(self._read_part, noted, hurry=hurry)

    def count(self) -> None:
        """Have all that wait counted."""
        pending, self._pending, self._waiting, self._pause = self._pending, {}, 0, SLICE
        self._parent = self  # of no request: the next one looks for its place again
        if pending:
            self._count(pending.values())

    def _try(self, read: Callable[..., object], *arguments: Any, hurry: bool) -> None:
        """Read, and count that it failed."""
        is_read = False
        with guard("read finished requests"):
            read(*arguments, hurry=hurry)
            is_read = True
        if not is_read:
            self._bad(Counter(unreadable=1))

    def _read_part(self, noted: Noted, *, hurry: bool) -> None:
        """Read and remove some, up to the first reader that fails.

        A run of the same reader and parent is read together where the reader can do that.
        """
        taken = 0
        try:
            while taken <= PART and taken < len(noted):
                reader, parent, number = noted[taken : taken + 3]
                size = 3 + number
                some = noted[taken : taken + size * min(SLICE, 1 + (PART - taken) // size)]
                alike = native.run(some, size) if native is not None else _alike(some, size)
                given = [some[place : size * alike : size] for place in range(3, size)]
                rows = attempt("read together", "finished requests", _together, reader, given)
                if rows is not None:
                    taken += size * alike
                    self._take_in([rows], parent, hurry=hurry)
                    continue
                results: list[Iterable[Row]] = []
                try:
                    results.extend(map(reader, *given) if given else (reader() for _ in range(alike)))
                    if len(results) < alike:
                        raise RuntimeError("the reader of finished requests raised StopIteration")
                finally:  # the one that failed is over, too
                    taken += size * min(len(results) + 1, alike)
                    self._take_in(results, parent, hurry=hurry)
        finally:
            del noted[:taken]

    def _take_in(self, results: list[Iterable[Row]], parent: Any, *, hurry: bool) -> None:
        """Let rows of one parent wait, which most often are one request each."""
        rows: list[Row] | None = None
        if SEQUENCES.issuperset(map(type, results)):
            rows = list(chain.from_iterable(results))
        if rows is None or len(rows) > CHUNK:
            for result in results:
                self._try(self._read_long, result, parent, hurry=hurry)
            return
        if parent is not self._parent:
            self._look_at(parent)
        self._bucket.rows.extend(rows)
        self._waiting += len(rows)
        if self._waiting >= self._pause:
            self._let_go(hurry=hurry)

    def _read_long(self, rows: Iterable[Row], parent: Any, *, hurry: bool) -> None:
        """Read rows slice by slice."""
        source, taken = iter(rows), SLICE
        while taken == SLICE:
            if parent is not self._parent:  # what waited was counted
                self._look_at(parent)
            waiting = self._bucket.rows
            before = len(waiting)
            try:
                waiting.extend(islice(source, SLICE))
            finally:
                taken = len(waiting) - before
                self._waiting += taken
                if self._waiting >= self._pause:
                    self._let_go(hurry=hurry)

    def _look_at(self, parent: Any) -> None:
        """Find where the requests of a parent wait, and what will be wrong with them."""
        place = place_of(parent)
        key, trace = key_of(place), place.trace if place else None
        problem = ""
        if isinstance(place, Stage) and not place.ended:
            problem = "" if place in tracing.open else "forked"
        elif trace is not None and trace.trace_id in self._over:
            problem = "late"
        bucket = self._pending.get((key, problem))
        if bucket is None:
            bucket = self._pending[key, problem] = Bucket(key, trace, problem)
        bucket.turns.append((len(bucket.rows), place))
        self._parent, self._bucket = parent, bucket

    def _let_go(self, *, hurry: bool) -> None:
        """Count what was read once it is enough, and let go of the interpreter for a moment."""
        if self._waiting >= CHUNK:
            self.count()
        self._pause = self._waiting + SLICE
        if not hurry:
            sleep(BREATH_S)


def _together(reader: Any, given: list[Any]) -> list[Row] | None:
    """Read a run in one go where the reader can do that, to its end: what fails in it is read one by one."""
    many = getattr(reader, "many", None)
    return None if many is None or not given else list(many(*given))


def _alike(pieces: list[Any], size: int) -> int:
    """Say how many of the first ones, each of so many pieces, have the same reader, parent and number of arguments."""
    reader, parent, number = pieces[:3]
    count = 0
    for other_reader, other_parent, other_number in zip(pieces[::size], pieces[1::size], pieces[2::size], strict=False):
        if other_reader is not reader or other_parent is not parent or other_number != number:
            break
        count += 1
    return count
