"""Finished requests between an engine's objects and the count: read, and joined to what belongs together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable
from itertools import islice
from typing import Any, Final

from otel_rl.clock import sleep
from otel_rl.guard import attempt
from otel_rl.process.state import state
from otel_rl.records import FinishedRequests
from otel_rl.requests.parents import Uncounted, key_of, parent_of
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage

CHUNK: Final = 500
"""Requests that are counted at once: so few are gone before the garbage collector has visited them twice."""
BREATH: Final = 250
"""Requests that are read before the interpreter is released for a moment: the training thread may wait for it."""
BREATH_S: Final = 0.000_05


class RequestReader:
    """The requests that were read and are not counted; used by the flusher only."""

    def __init__(
        self,
        count: Callable[[Iterable[Uncounted]], object],
        bad: Callable[[Counter[str]], object],
        over: Container[int],
    ) -> None:
        """Begin without requests.

        Args:
            count: counts what was read.
            bad: counts what could not be read.
            over: trace ids of the steps that have ended.
        """
        self._count, self._bad, self._over = count, bad, over
        self._uncounted: dict[Any, Uncounted] = {}
        self._size = 0
        self._breath_at = BREATH
        self._parent: Any = self
        """The last parent: the next requests most often have the same."""
        self._current = Uncounted(None, None)

    def read(self, finished: FinishedRequests, *, hurry: bool) -> None:
        """Read finished requests; what a reader gives before it fails is kept.

        Args:
            finished: is empty then, unless other threads still add to it: they queue it again.
            hurry: somebody waits; otherwise the interpreter is let go of now and then.
        """
        if state.queue.finished is finished:
            state.queue.renew_finished()
        pieces, size = iter(finished), 0
        try:
            for read in pieces:
                parent, number = next(pieces), next(pieces)
                size += 3 + number
                if not attempt("read", "finished requests", self._read, read, parent, islice(pieces, number), hurry):
                    self._bad(Counter(unreadable=1))
        finally:
            del finished[:size]

    def _read(self, read: Callable[..., Iterable[Any]], parent: Any, arguments: Iterable[Any], hurry: bool) -> bool:
        requests = iter(read(*arguments))
        size = BREATH
        while size == BREATH:
            if parent is not self._parent:
                self._find(parent)
            values = self._current.values
            before = len(values)
            values.extend(islice(requests, BREATH))
            size = len(values) - before
            self._size += size
            if self._size >= self._breath_at:
                self._breathe(hurry=hurry)
        return True

    def count(self) -> None:
        """Count all that was read."""
        uncounted, self._uncounted, self._size, self._breath_at = self._uncounted, {}, 0, BREATH
        self._parent = self  # of no request
        if uncounted:
            self._count(uncounted.values())

    def _find(self, parent: Any) -> None:
        """Find what the requests of a parent are counted with, and what is wrong with all of them."""
        found = parent_of(parent)
        key, trace = key_of(found), found.trace if found else None
        problem = ""
        if isinstance(found, Stage) and not found.ended:
            problem = "" if found in tracing.open else "forked"
        elif trace is not None and trace.trace_id in self._over:
            problem = "late"
        uncounted = self._uncounted.get((key, problem))
        if uncounted is None:
            uncounted = self._uncounted[key, problem] = Uncounted(key, trace, problem)
        uncounted.turns.append((len(uncounted.values), found))
        self._parent, self._current = parent, uncounted

    def _breathe(self, *, hurry: bool) -> None:
        """Count what was read once it is enough, and release the interpreter for a moment."""
        if self._size >= CHUNK:
            self.count()
        self._breath_at = self._size + BREATH
        if not hurry:
            sleep(BREATH_S)
