"""How long a device works on a stage, by events on its stream: nothing is ever waited for.

Each stage has two timing events of its own, recorded on the stream that is current at its begin. What lies between them
is the stage on the device, with the waits of that stream for other streams in it, those of collectives among them. An
elapsed time is float32 milliseconds, exact to 1 part in 16 million however long the run has lasted, because the two
events are the stage's own: no distant event is an anchor.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Sequence
from itertools import chain
from threading import get_ident
from typing import Any, Final, NamedTuple

from otel_rl import vocabulary
from otel_rl.guard import attempt
from otel_rl.probes.exposed import Exposed, Pair
from otel_rl.probes.memory import probes
from otel_rl.process.state import state
from otel_rl.records import PendingAttributes, Value
from otel_rl.vocabulary import CONTAINER

ASYNCHRONOUS: Final = frozenset(
    (
        vocabulary.LOGPROB,
        vocabulary.LOGPROB_FORWARD,
        vocabulary.VALUE,
        vocabulary.ADVANTAGE,
        vocabulary.FORWARD,
        vocabulary.BACKWARD,
        vocabulary.CLIP,
        vocabulary.OPTIMIZER,
        vocabulary.COMM,
    )
)
"""Stages whose work an accelerator does after the host has asked for it: their host duration is that of the launch."""
UNTIMED: Final = frozenset(
    (
        vocabulary.LOOP,
        vocabulary.SETUP,
        vocabulary.TEARDOWN,
        vocabulary.IDLE,
        vocabulary.COMM,
        vocabulary.SAMPLE_TOKENIZE,
        vocabulary.SAMPLE_DECODE,
    )
)
"""What is not timed on the device, beside the containers of ranks: spans that hold a trace, waits of the host and its
work on texts, and collectives, of which there are hundreds; what their stage waits for them is timed instead
(``exposed.py``)."""
ROLLOUTS: Final = frozenset((vocabulary.SAMPLE, vocabulary.SAMPLE_GENERATE))
"""Stages that may do nothing on this device but wait for a server."""
LIMIT: Final = 1024
"""Stages of a thread that may wait for their device; then the oldest goes without its time, and is counted."""
KEPT: Final = 2048
"""Events of a device that are kept to be used again."""


class DeviceStart(NamedTuple):
    """A stage that is on its way."""

    event: Any
    stream: Any
    thread: int
    """Only this one may mark the end: another does not know whether it captures a graph, nor what it did since."""


class _Timed(NamedTuple):
    begun: DeviceStart
    end: Any
    attributes: PendingAttributes
    waits: Sequence[Pair]
    """Its waits for collectives, all of them between its begin and its end."""


class _OfThread(threading.local):
    """What a thread has recorded and may ask for: a query by another one could break a capture of this one's graph."""

    def __init__(self) -> None:
        self.pending: deque[_Timed] = deque()


class DeviceClock:
    """Times stages on the device of one process: ``torch.cuda`` (CUDA, ROCm) or ``torch.npu``.

    Every stage has a time of its own, those inside it included. Where this process has steps, only their thread is
    timed: other threads share its stream, and their queries could break a capture that it has begun.

    Cost: two events a stage, which are used again, and one query at each end of a following stage. When
    the device fails, its clock stops for good; that is counted once, and the host hears of it from its own calls.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self._free: defaultdict[Any, list[Any]] = defaultdict(list)
        """Events that are free, by their device; they cannot be recorded on another."""
        self._begun: dict[Any, DeviceStart] = {}
        self.exposed = Exposed(device, self._mark)
        self._here: set[Any] = set()
        """Rollout stages whose tokens this process generates."""
        self._of_thread = _OfThread()
        self._has_failed = False

    # --- both ends of a stage -----------------------------------------------------------------------------------------

    def begin(self, stage: Any) -> None:
        self.resolve()
        if stage.name not in UNTIMED and not stage.name.startswith(CONTAINER):
            begun = self.start()
            if begun is not None:
                self._begun[stage] = begun
                if not (stage.attributes or {}).get(vocabulary.CHECKPOINT_ASYNC):  # another thread ends it: no number
                    self.exposed.open(stage, begun.stream)

    def generates(self) -> None:
        """Mark that this thread generates: the rollout stages open on it do not only wait for a server."""
        me = get_ident()
        for stage, begun in self._begun.copy().items():
            if stage.name in ROLLOUTS and begun.thread == me:
                self._here.add(stage)

    def end(self, stage: Any) -> None:
        """Mark the end of a stage; its attributes are pending until the device was there."""
        self.resolve()
        begun = self._begun.pop(stage, None)
        if begun is None:
            return
        waits = self.exposed.close(stage)
        if stage in self._here:
            self._here.discard(stage)
        elif stage.name in ROLLOUTS:
            self._keep(begun.stream, begun.event)
            return
        stage.attributes = self.stop(begun, stage.attributes, waits)

    def forget(self, stage: Any) -> None:
        self._begun.pop(stage, None)
        self._here.discard(stage)
        self.exposed.close(stage)

    def start(self) -> DeviceStart | None:
        """Mark a begin on the current stream; None where that cannot be."""
        return attempt("time", "work of the device", self._start)

    def stop(
        self, begun: DeviceStart, attributes: dict[str, Value] | None, waits: Sequence[Pair] = ()
    ) -> dict[str, Value] | None:
        """Mark the end of what ``start`` began, on the same stream.

        Returns:
            The attributes, to be complete once ``resolve`` finds that the device was there; as they were if the end
            cannot be marked, or is on another thread than the begin.
        """
        timed = attempt("time", "work of the device", self._stop, begun, attributes, waits)
        return attributes if timed is None else timed

    # --- when the device was there ------------------------------------------------------------------------------------

    def resolve(self) -> None:
        """Complete the attributes of what has ended on the device, of this thread's; never during a capture.

        What a thread timed before the first step, if that is another's, goes without its times.
        """
        pending = self._of_thread.pending
        if pending:
            attempt("read", "times of the device", self._resolve if _is_mine() else self._give_up, pending)

    @property
    def is_pending(self) -> bool:
        return bool(self._of_thread.pending)

    # --- guarded ------------------------------------------------------------------------------------------------------

    def _start(self) -> DeviceStart | None:
        if self._has_failed or not _is_mine():
            return None
        try:
            if not may_record(self._device):
                return None  # an event recorded into a graph would be recorded again with every replay
            stream = self._device.current_stream()
            return DeviceStart(self._record(stream), stream, get_ident())
        except RuntimeError:
            self._fail()
            return None

    def _stop(
        self, begun: DeviceStart, attributes: dict[str, Value] | None, waits: Sequence[Pair]
    ) -> PendingAttributes | None:
        if self._has_failed:
            return None
        try:
            if begun.thread != get_ident() or not _is_mine() or is_capturing(self._device):
                self._keep(begun.stream, begun.event)
                return None
            end = self._record(begun.stream)
        except RuntimeError:
            self._fail()
            return None
        if attributes.__class__ is PendingAttributes:
            timed: PendingAttributes = attributes
        else:
            timed = PendingAttributes(attributes or {})
            timed.is_complete = True
        timed.is_timed = False
        pending = self._of_thread.pending
        if len(pending) >= LIMIT:
            oldest = pending.popleft()
            oldest.attributes.is_timed = True
            state.drop("metrics", "device_too_late")
        if timed.get(vocabulary.COMM_HIDDEN) is True:
            waits = ()  # there are others, which Python does not see
        pending.append(_Timed(begun, end, timed, waits))
        return timed

    def _resolve(self, pending: deque[_Timed]) -> None:
        try:
            while pending and not is_capturing(self._device) and pending[0].end.query():
                begun, end, attributes, waits = pending.popleft()
                try:
                    attributes[vocabulary.DEVICE_TIME] = begun.event.elapsed_time(end) / 1e3
                    if waits:
                        waited_ms = [first.elapsed_time(last) for first, last in waits]
                        attributes[vocabulary.COMM_EXPOSED] = sum(waited_ms) / 1e3
                finally:  # it waits no more, also where the device fails meanwhile
                    attributes.is_timed = True
                self._keep(begun.stream, begun.event, end, *chain.from_iterable(waits))
        except RuntimeError:
            self._fail()

    def _give_up(self, pending: deque[_Timed]) -> None:
        while pending:
            begun, end, attributes, waits = pending.popleft()
            attributes.is_timed = True
            self._keep(begun.stream, begun.event, end, *chain.from_iterable(waits))

    def _mark(self, stream: Any) -> Any:
        """Record an event on a stream; None where that must not be.

        Raises:
            RuntimeError: the device has failed.
        """
        return None if self._has_failed or is_capturing(self._device) else self._record(stream)

    def _record(self, stream: Any) -> Any:
        free = self._free[stream.device]
        event = free.pop() if free else self._device.Event(enable_timing=True)
        event.record(stream)
        return event

    def _keep(self, stream: Any, *events: Any) -> None:
        free = self._free[stream.device]
        if len(free) < KEPT:
            free.extend(events)

    def _fail(self) -> None:
        if not self._has_failed:
            self._has_failed = True
            state.drop("metrics", "device_failed")
        self._give_up(self._of_thread.pending)
        self._begun.clear()
        self._here.clear()
        self.exposed.forget()


def _is_mine() -> bool:
    return state.step_thread in (0, get_ident())


def is_used(device: Any) -> bool:
    """Return whether this process uses the current device, as far as that can be asked.

    A thread begins on device 0, whichever its process uses: to record or to ask something there would take some hundred
    MB of it for good.

    Raises:
        RuntimeError: the device has failed.
    """
    return probes.has_context is None or bool(probes.has_context(device.current_device()))


def is_capturing(device: Any) -> bool:
    """Return whether what this thread asks of the device is recorded into a graph instead of done.

    Raises:
        RuntimeError: the device has failed.
    """
    return is_used(device) and _captures(device)


def may_record(device: Any) -> bool:
    """Return whether what this thread asks of the device is done at once, on a device that this process uses.

    Raises:
        RuntimeError: the device has failed.
    """
    return is_used(device) and not _captures(device)


def _captures(device: Any) -> bool:
    return bool(getattr(device, "is_current_stream_capturing", bool)())
