"""The flusher: one thread that encodes and journals what the hot threads recorded."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from otel_rl import vocabulary
from otel_rl.clock import monotonic
from otel_rl.flusher.dispatch import Dispatcher
from otel_rl.flusher.spool import Spool
from otel_rl.guard import errors, guard, say
from otel_rl.journal.frame import Signal
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.otlp.encode import OtlpRequest, SpanEncoder
from otel_rl.journal.write import Writer
from otel_rl.metrics.record import Fold
from otel_rl.probes.device_id import learn_device
from otel_rl.probes.event_loops import EventLoops
from otel_rl.probes.memory import probes, use_memory_reader
from otel_rl.process import directories
from otel_rl.process.identity import folder_name, identifying, is_ray_worker
from otel_rl.process.state import state
from otel_rl.records import Point, Span, Value
from otel_rl.sidecar.start import make_keeper
from otel_rl.trace.attempt import meet, report_alone
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage
from otel_rl.version import __version__

PERIOD_S = 0.5
"""A killed process loses at most this and the time of one cycle."""
MEET_S = 0.1
"""The same while the attempt is to be found: records wait for it."""
SLICE = 5_000
"""Records that one cycle takes at most: what was recorded first is on disk soon, however much waits."""
WAITS = 20
"""An exit waits in so many parts: a machine that stands still for seconds costs one of them."""
IMPORT = "<frozen importlib._bootstrap>"
"""The file of Python's functions that import."""
HEARTBEAT_S = 5.0
FREEZE_S = 10.0
"""The resource is final this long after the first span, even without a step. Set-up itself may take longer: importing
torch and TRL on a cold machine does, and only then is it known what trains. Metrics wait for it as long at most."""
HOLD_LIMIT = 20_000
"""Spans, and points, that may wait for the attempt to become known; then a rank above 0 reports alone."""


class _Answer(threading.Event):
    """Set when a cycle that was asked for is over."""

    def __init__(self, *, is_last: bool = False, is_end: bool = False, then: Callable[[], Any] | None = None) -> None:
        super().__init__()
        self.is_last = is_last
        """Whether the journal is complete after it."""
        self.is_end = is_end
        """Whether nothing can follow."""
        self.written = False
        self._then = then

    def set(self) -> None:
        super().set()
        if self._then is not None:
            with guard("say that it is journaled"):  # its event loop may be closed
                self._then()


class Flusher:
    """Owns the journal of this process; a forked child makes a new one."""

    def __init__(self, foreign: Callable[[Any, Any], list[OtlpRequest]]) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        """Held during a cycle; a fork waits for it a moment, so that a child never sees a half-done one."""
        self.fold = Fold(state.now(), is_exponential=state.config.is_exponential)
        self.recorded: Counter[Signal] = Counter()
        self.encoded: Counter[Signal] = Counter()
        self._foreign = foreign
        self._queue = state.queue
        self._encoder: SpanEncoder | None = None
        self._writer: Writer | None = None
        self._identity: Any = None
        self._resource: dict[str, Value] = {}
        """What is known of the process, as every request says it."""
        self._stopping = self._given_up = self._is_over = self._has_said_failure = self._has_said_late = False
        self._rests = False
        """Whether the journal is complete, and the thread does nothing until it is asked."""
        self._calls: SimpleQueue[None] = SimpleQueue()
        """Wakes the thread. An event would not do: a signal handler that flushes would wait for its lock for ever."""
        self._asked: deque[_Answer] = deque()
        self._spool = Spool(self.fold)
        self._is_asked = False
        """Whether somebody waits for this cycle: what was recorded must be on disk after it."""
        self.dispatcher = Dispatcher(self.fold)
        self._keeper = make_keeper(is_forbidden=not state.config.sidecar)
        """Keeps the process alive that sends the records; None where nothing is to be sent."""
        self._loops = EventLoops() if state.config.event_loop_lag else None
        self._first = self._pending_since = 0.0
        self._counts_written: tuple[int, ...] = ()
        self._beat = monotonic()
        self._thread = threading.Thread(target=self._run, name="otel_rl-flusher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def flush(self, timeout_s: float) -> bool:
        """Journal what was recorded until now; True when it is on disk.

        False when time ran out, the disk refuses, or some of it waits for what is still unknown of this process.
        """
        answer = self._ask(_Answer(), timeout_s)
        return answer.is_set() and answer.written

    def ask(self, then: Callable[[], object]) -> None:
        """Journal what was recorded until now, and call a function in the flusher's thread when that is over."""
        self._ask(_Answer(then=then), 0.0)

    def stop(self, timeout_s: float, *, rests: bool = False) -> bool:
        """Journal everything and end the journal; what cannot be written is said.

        Args:
            timeout_s: how long to wait for that; the thread goes on with it.
            rests: whether more may follow, as exit handlers of the program come after ours; else the thread ends.
        """
        answer = self._ask(_Answer(is_last=True, is_end=not rests), 0.0)
        is_late = not any(answer.wait(timeout_s / WAITS) for _ in range(WAITS))
        self._given_up = is_late and not rests  # what the recording knew is forgotten then
        if is_late:
            self.dispatcher.page.show_unwritten()
            if not self._has_said_late:
                self._has_said_late = True
                say("otel_rl: the journal was not done in time; what was recorded last may be lost")
        return not is_late and answer.written

    def rouse(self) -> None:
        """Let the thread journal by itself again, if it rests: more is being recorded."""
        if self._rests:
            self._rests = False
            self._calls.put(None)

    def is_this_thread(self) -> bool:
        """Return whether the flusher's thread asks, as when it collects garbage that was an open stage."""
        return threading.current_thread() is self._thread

    def _ask(self, answer: _Answer, timeout_s: float) -> _Answer:
        """Make the thread do a cycle now, since a disk that hangs must not hold up who asks."""
        self._asked.append(answer)
        self._calls.put(None)
        if self._is_over:
            self._refuse()
        elif not self._thread.is_alive():
            self._serve()
        answer.wait(min(max(timeout_s, 0), threading.TIMEOUT_MAX))
        return answer

    def is_importing(self) -> bool:
        """Return whether the thread imports a module now, such as numpy with the first requests."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        while frame is not None and frame.f_code.co_filename != IMPORT:
            frame = frame.f_back
        return frame is not None

    def abandon(self) -> None:
        """Drop what a fork inherited: files and counts are the parent's."""
        if self._writer is not None:
            self._writer.close_in_child()
        self.dispatcher.page.abandon()

    # --- one cycle ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        is_end = False
        while not is_end:
            with suppress(Empty):
                self._calls.get(timeout=self._pause_s())
            is_end = self._serve()
        self._is_over = True
        self._refuse()

    def _pause_s(self) -> float | None:
        if self._rests:  # an interpreter that ends finds the thread waiting, in no function of anybody
            return None
        return PERIOD_S if identifying.rendezvous is None else min(PERIOD_S, MEET_S)

    def _refuse(self) -> None:
        """Answer those who asked while the journal was being closed, or later."""
        with suppress(IndexError):
            while True:
                self._asked.popleft().set()

    def _serve(self) -> bool:
        """Do a cycle and answer all who asked before it; return whether nothing can follow."""
        with self.lock:
            asked = [self._asked.popleft() for _ in range(len(self._asked))]
            self._is_asked = bool(asked)
            is_last = self._stopping = self._rests or any(answer.is_last for answer in asked)
            is_end = any(answer.is_end for answer in asked)
            written = False
            with guard("journal what was recorded"):
                meet(is_asked=self._is_asked, is_last=is_last)
                self._cycles()
                written = self._writer is not None and not self._writer.pending_bytes
                written = written and not self._spool.spans and not self.fold.is_pending
            if is_last:
                with guard("close the journal"):
                    written = self._close(is_end=is_end)
            self._rests = is_last
        for answer in asked:
            answer.written = written
            answer.set()
        return is_end

    def _cycles(self) -> None:
        for _ in range(len(self._queue) // SLICE + 1):
            if self._given_up:
                return
            self._cycle()

    def _cycle(self) -> None:
        is_due = self._metrics_due()  # first, since it may complete the resource that all of the cycle is written with
        try:
            encoder, writer = self._target()
        except directories.NowhereError as error:  # the next cycle tries again
            self._say_failure(str(error))
            return
        if self._loops is not None:
            with guard("measure how late event loops are"):
                found = self._loops.lag()
                if found is not None:
                    lag, at_ns = found
                    self.fold.point(Point(vocabulary.EVENT_LOOP_LAG, lag, at_ns + state.clock.anchor))
        opened, records = self._drain()
        result = self.dispatcher.dispatch(
            opened, records, is_asked=self._is_asked, is_all=len(records) < SLICE, is_last=self._stopping
        )
        with guard("journal log records"):
            for logs in (result.logs, result.samples):
                self.recorded["logs"] += len(logs)
                self._write(writer, encoder.encode_logs(logs))
        with guard("journal spans"):  # they ended before what they are in: the journal gets parents first
            spans = self._release(result.spans)
            self.recorded["traces"] += len(spans)
            self._write(writer, encoder.encode(reversed(spans)))
        with guard("journal spans and metrics of others"):
            self.recorded["traces"] += len(result.foreign)
            requests = self._foreign(result.foreign, self._resource)  # their metrics it collects itself
            self.recorded["metrics"] += sum(request.count for request in requests if request.signal == "metrics")
            self._write(writer, requests)
        if is_due and (self.fold.is_pending or self._counts(writer, encoder) != self._counts_written):
            self._journal_metrics(writer, encoder)
        self._spool.update(writer, self._resource)
        with guard("show the open stages"):
            self.dispatcher.page.update(writer, opened)
        self._care_for(writer)
        if self._keeper is not None and self._identity.known and writer.frames and not self._stopping:
            with guard("keep the sidecar alive"):
                self._keeper.check(writer.directory.absolute(), writer.identity)

    def _drain(self) -> tuple[dict[Any, None], list[Any]]:
        """Drain the open stages and the finished ones so that the parent of a finished one is in either.

        A stage that ends between the two reads would be in none, and a kill right then would orphan its children; so
        read again until nothing ended meanwhile. New stages are no matter: their children have not ended before them.
        """
        queue = self._queue
        opened: dict[Any, None] = {}
        queued = 0
        for _ in range(8):
            queued = len(queue)
            opened = tracing.open.copy()
            if len(queue) == queued:
                break
        return opened, [queue.popleft() for _ in range(min(queued, len(queue), SLICE))]

    # --- attempt, resource, journal -----------------------------------------------------------------------------------

    def _release(self, spans: list[Span]) -> list[Span]:
        """Hold back the spans of a set-up whose attempt is not known yet, up to a limit."""
        both, self._spool.spans = self._spool.spans + spans, []
        if self._identity.known:
            unsampled, tracing.unsampled = tracing.unsampled, set()
            return [span for span in both if span.trace_id not in unsampled] if unsampled else both
        self._spool.spans = both
        if len(both) > HOLD_LIMIT:
            report_alone()
        return []

    def _target(self) -> tuple[SpanEncoder, Writer]:
        """Return encoder and writer for the identity as it is known now."""
        with identifying.lock:  # who makes the attempt known gives the set-up its ids, too
            identity = state.identity
        if identity is not self._identity:
            self._resource = identity.resource(state.config.service)
        if self._encoder is None or self._writer is None:
            length = state.config.attribute_length
            self._encoder = SpanEncoder(self._resource, __version__, max_text=length, stage=Stage)
            writer_identity = WriterIdentity.current(identity.role, identity.rank, __version__)
            self._writer = Writer(directories.run_directory(), writer_identity, state.config.journal_max_bytes)
        elif identity is not self._identity:
            self._encoder.set_resource(self._resource)
            if identity.run_id != self._identity.run_id:
                self._writer.move(directories.run_directory())
        self._identity = identity
        state.directory = self._writer.directory
        return self._encoder, self._writer

    def _write(self, writer: Writer, requests: list[OtlpRequest]) -> None:
        for request in requests:
            self.encoded[request.signal] += request.count
            writer.append(request.signal, request.payload, request.count, request.first_ns, request.last_ns)

    def _journal_metrics(self, writer: Writer, encoder: SpanEncoder) -> None:
        """Journal the metrics that have changed, with our own counts as they are before that."""
        with guard("journal metrics"):
            self._count_self(writer, encoder)
            metrics = self.fold.drain(state.now())
            self.recorded["metrics"] += sum(len(metric.points) for metric in metrics)
            self._write(writer, encoder.encode_metrics(metrics))
            self._counts_written = self._counts(writer, encoder)

    def _metrics_due(self) -> bool:
        """Return whether to journal metrics: they wait for the resource, so that a series keeps its labels.

        Not for ever, since what waits is not seen. After a while they are journaled under what is known, and the
        resource stays open: a rank counts its first collectives long before the framework and the layout are known.
        """
        now = monotonic()
        if not self._first and self.encoded["traces"]:
            self._first = now
        if not self._pending_since and self.fold.is_pending:
            self._pending_since = now
        if self._stopping or (self._first and now - self._first > FREEZE_S):
            if not identifying.frozen:
                learn_device()
            state.freeze()
        is_full = self.fold.num_points > HOLD_LIMIT
        if is_full:
            report_alone()
        waited = bool(self._pending_since) and now - self._pending_since > FREEZE_S
        return (identifying.frozen or waited or is_full) and state.identity.known

    def _counts(self, writer: Writer, encoder: SpanEncoder) -> tuple[int, ...]:
        """Our own counts in short; they are journaled where they have changed, but not for having been journaled."""
        counters = (self.recorded, writer.records, state.dropped, encoder.dropped, writer.dropped, errors)
        return self.fold.overflow, *(sum(list(counter.values())) for counter in counters)

    def _count_self(self, writer: Writer, encoder: SpanEncoder) -> None:
        """Put our own counts among the metrics: what was recorded is journaled, waiting, dropped or in error."""
        dropped = Counter(state.dropped) + Counter(encoder.dropped) + Counter(writer.dropped)
        if self.fold.overflow:
            dropped["metrics", "too_many_series"] += self.fold.overflow
        counted: dict[str, Mapping[Signal, int]] = {
            vocabulary.SELF_RECORDED: self.recorded,
            vocabulary.SELF_ENCODED: self.encoded,
            vocabulary.SELF_JOURNALED: writer.records,
        }
        for name, by_signal in counted.items():
            for kind, number in by_signal.items():
                if number:
                    self.fold.total(name, number, ((vocabulary.SIGNAL, kind),))
        for (signal, reason), number in dropped.items():
            self.fold.total(vocabulary.SELF_DROPPED, number, ((vocabulary.REASON, reason), (vocabulary.SIGNAL, signal)))
        for reason, number in encoder.cleaned.items():
            if number:
                self.fold.total(vocabulary.SELF_CHANGED, number, ((vocabulary.REASON, reason),))
        for reason, number in list(errors.items()):
            self.fold.total(vocabulary.SELF_ERRORS, number, ((vocabulary.REASON, reason),))
        self.fold.total(vocabulary.SELF_BYTES, writer.bytes)

    def _care_for(self, writer: Writer) -> None:
        """Retry what the disk refused, show readers that we live, and report a lasting trouble once."""
        if probes.reader is not None and not probes.reader.is_own():
            use_memory_reader(probes.read_device)
        writer.retry()
        if monotonic() - self._beat > HEARTBEAT_S:
            self._beat = monotonic()
            self._look_after(writer)
            self.dispatcher.page.heartbeat()
        if writer.failure and is_ray_worker() and not self._has_said_failure:
            self._has_said_failure = True  # Ray may kill it, so nothing waits for its end
            self._redirect(writer)
        if writer.failure:
            self._say_failure(f"{writer.failure}; up to 64 MiB of records wait in memory")

    def _look_after(self, writer: Writer) -> None:
        before = sum(writer.dropped.values())
        writer.heartbeat()
        if sum(writer.dropped.values()) > before:
            say("otel_rl: %s was moved or removed; what comes now goes there anew, without what was", writer.directory)

    def _say_failure(self, what: str) -> None:
        if not self._has_said_failure:
            self._has_said_failure = True
            say("otel_rl: %s; training goes on", what)

    def _close(self, *, is_end: bool) -> bool:
        """End the journal; what still cannot be written goes to the temporary folder instead."""
        writer, encoder = self._writer, self._encoder
        if writer is None or encoder is None:
            return True
        self._look_after(writer)
        if writer.pending_bytes:
            self._redirect(writer)
        if self._counts_written and self._counts(writer, encoder) != self._counts_written:
            self._journal_metrics(writer, encoder)
        self._spool.update(writer, self._resource)
        lost = writer.end()
        if is_end:
            writer.close()
        self.dispatcher.page.close(is_whole=not lost)
        if self._keeper is not None and writer.frames:
            self._keeper.check_at_end(writer.directory.absolute(), writer.identity)
        if lost:
            say("otel_rl: %d records could not be written anywhere and are lost; see OTEL_RL_DIR", lost)
        return not lost

    def _redirect(self, writer: Writer) -> None:
        try:
            fallback = directories.fallback_root() / folder_name(self._identity.run_id)
        except OSError:  # no folder for temporary files can be written either: what waits is lost, which is said
            return
        say("otel_rl: %s; the records that wait go to %s", writer.failure, fallback)
        writer.redirect(fallback)
        writer.retry()
