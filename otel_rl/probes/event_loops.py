"""How late the asyncio event loops of this process are: a call is handed to each, and its wait is measured."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import islice
from typing import Any, Final
from weakref import WeakKeyDictionary

from otel_rl.clock import monotonic_ns

PERIOD_NS: Final = 1_000_000_000
"""The least time between two calls that a loop gets."""
MOST_LOOPS: Final = 8
MOST_TASKS: Final = 200
"""Tasks that are asked for their loop each time, whichever come first."""
TASKS: Final[Any] = getattr(asyncio.tasks, "_scheduled_tasks", getattr(asyncio.tasks, "_all_tasks", None))
"""Weak references to all tasks of asyncio, also those of uvloop; Python 3.14 has only those written in Python here."""


class _Probe:
    """What a loop is asked to call."""

    __slots__ = ("ran_ns", "sent_ns")

    def __init__(self, sent_ns: int) -> None:
        self.sent_ns = sent_ns
        self.ran_ns = 0

    def __call__(self) -> None:
        self.ran_ns = monotonic_ns()


class EventLoops:
    """The running loops of this process; used by the flusher only.

    uvloop shows nothing of its queue, so there is no way that leaves a loop alone. A loop gets one call more a second,
    and none while that one waits; what the program itself has asked for keeps its order.
    """

    def __init__(self) -> None:
        self._probes: WeakKeyDictionary[Any, _Probe | None] = WeakKeyDictionary()
        """The last call that each loop got; none before the first, and after the loop stood still."""
        self._sent_ns = 0

    def lag(self) -> tuple[float, int] | None:
        """Return how long a call waits in the loop that is latest, s, and until when; None where no loop runs.

        Once a second. A call that still waits counts with its age. Cost: 30 to 60 us, and 20 us of the loop's thread
        (uvloop: 8 us).
        """
        now = monotonic_ns()
        for loop in [*self._probes]:
            if loop.is_closed():
                del self._probes[loop]
            elif not loop.is_running():  # what waits in a loop that stands still is not late
                self._probes[loop] = None
        if now - self._sent_ns < PERIOD_NS:
            return None
        self._sent_ns = now
        self._find()
        found = [lag for loop, probe in [*self._probes.items()] if (lag := self._lag(loop, probe, now)) is not None]
        return max(found, default=None)

    def _find(self) -> None:
        references = [*islice(getattr(TASKS, "data", ()), MOST_TASKS)]  # in C: no other thread runs meanwhile
        for loop in {task.get_loop() for reference in references if (task := reference()) is not None}:
            if loop not in self._probes and loop.is_running() and len(self._probes) < MOST_LOOPS:
                self._probes[loop] = None

    def _lag(self, loop: Any, probe: _Probe | None, now: int) -> tuple[float, int] | None:
        if probe is not None and not probe.ran_ns:
            return (now - probe.sent_ns) / 1e9, now
        if loop.is_running():
            self._probes[loop] = sent = _Probe(monotonic_ns())
            with suppress(RuntimeError):  # it was closed meanwhile
                loop.call_soon_threadsafe(sent)
        return None if probe is None else ((probe.ran_ns - probe.sent_ns) / 1e9, probe.ran_ns)
