"""How long the stream of a stage stands still for collectives: the part of them that computing did not hide.

Around each call that waits (a synchronous collective, ``Work.wait``, ``wait_tensor``) two timing events are recorded on
the stream that the stage began on. Between them that stream has nothing to do but what the call gave it: it waits for
the transfer and for slower ranks, and, where it had run dry before, for the host's way through the call, tens of
microseconds. They lie between the two events of the stage itself, and are read when those are: they need no query.

A stage has a sum only if every wait that Python saw in it was of this kind. FSDP calls its collectives on streams of
its own and lets the stage's stream wait by events: such a stage has none, nor one that did not wait for all that it
launched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

FEW: Final = 16
"""Stages of a name that wait more often are timed one in ``EVERY``: two events a wait are not free."""
EVERY: Final = 7
"""No divisor of a usual number of micro-batches, so that it is not always the same one."""
MOST_CALLS: Final = 512
"""Waits of one stage that are timed; one with more has no sum."""

Pair = tuple[Any, Any]
"""Events at both ends of a wait."""


class Waits:
    """The waits of one open stage."""

    __slots__ = ("calls", "is_lost", "launched", "pairs", "stream")

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.calls = 0
        self.pairs: list[Pair] = []
        self.launched: set[Any] = set()
        """Collectives that go on, and for which no call has waited yet."""
        self.is_lost = False
        """Whether one of them could not be timed; then none is from there on."""


class Exposed:
    """Times the waits of the open stages of one device. Cost of a wait: two events, and asking for the stream."""

    def __init__(self, device: Any, mark: Callable[[Any], Any]) -> None:
        self._device, self._mark = device, mark
        self._open: dict[Any, Waits] = {}
        self._untimed: dict[str, int] = {}
        """How many stages of each name go untimed before the next one is timed."""

    # --- a stage ------------------------------------------------------------------------------------------------------

    def open(self, stage: Any, stream: Any) -> None:
        """Watch a stage that begins on a stream, unless it is not its turn."""
        untimed = self._untimed.get(stage.name, 0)
        if untimed:
            self._untimed[stage.name] = untimed - 1
        else:
            self._open[stage] = Waits(stream)

    def close(self, stage: Any) -> tuple[Pair, ...]:
        """Return the waits of a stage that ends; none where it had none, or where not all of them are known."""
        waits = self._open.pop(stage, None)
        if waits is None:
            return ()
        if waits.calls > FEW:
            self._untimed[stage.name] = EVERY - 1
        is_known = not waits.launched and len(waits.pairs) == waits.calls
        return tuple(waits.pairs) if is_known else ()  # a copy: another thread may begin another wait

    def forget(self) -> None:
        self._open.clear()

    # --- collectives in it --------------------------------------------------------------------------------------------

    def launched(self, collective: Any) -> None:
        waits = self._open.get(collective.stage)
        if waits is not None:
            waits.launched.add(collective)

    def awaited(self, collective: Any) -> None:
        waits = self._open.get(collective.stage)
        if waits is not None:
            waits.launched.discard(collective)

    def begin(self, collective: Any) -> tuple[Waits, Any] | None:
        """Mark the begin of a call that waits; None where it is not timed.

        It may be on another thread than the stage: backwards run on autograd's.
        """
        waits = self._open.get(collective.stage)
        if waits is None or collective.goes_on:
            return None
        waits.calls += 1
        if waits.is_lost:
            return None
        event = None
        try:
            if waits.calls <= MOST_CALLS and self._device.current_stream() == waits.stream:
                event = self._mark(waits.stream)
        except RuntimeError:  # the device has failed, which the stage's end will find out
            pass
        waits.is_lost = event is None
        return None if event is None else (waits, event)

    def end(self, begun: tuple[Waits, Any]) -> None:
        waits, event = begun
        try:
            end = self._mark(waits.stream)
        except RuntimeError:
            end = None
        if end is None:
            waits.is_lost = True
        else:
            waits.pairs.append((event, end))
