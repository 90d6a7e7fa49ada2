"""The root and the container of a trace of this rank, and the traces of set-up and tear-down."""

from __future__ import annotations

from threading import get_ident

from opentelemetry.trace import Span, SpanContext

from otel_rl import ids, vocabulary
from otel_rl.clock import thread_time_ns
from otel_rl.probes.memory import peak_rss
from otel_rl.process.identity import identifying
from otel_rl.process.state import PHASES, Trace, state
from otel_rl.process.status import status
from otel_rl.records import Value
from otel_rl.trace.child_process import join_parent
from otel_rl.trace.current import CONTEXT, SPAN_KEY
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage


class StepSpans:
    """The two spans that hold one trace of this rank: the root, which only one process emits, and the container."""

    __slots__ = ("container", "cpu", "cpu_ns", "peak", "root")

    def __init__(self, name: str, loop: str, number: int, begin: int, attributes: dict[str, Value]) -> None:
        self.peak = peak_rss()
        self.cpu = get_ident(), thread_time_ns()
        """The thread in which it began, and the CPU time that this thread had used."""
        self.cpu_ns = -1
        """CPU time of that thread in it, once it is closed; below 0 if another thread closed it."""
        with identifying.lock:  # the attempt may become known meanwhile, to all trees that are there
            self._open(name, loop, number, begin, attributes)

    def _open(self, name: str, loop: str, number: int, begin: int, attributes: dict[str, Value]) -> None:
        identity = state.identity
        # Of an unknown attempt nothing can be derived: spans of others that take this id must not collide.
        trace_id = ids.trace_id(identity.attempt_id or f"{ids.random_bits(128):x}", loop, number)
        # Set-up and tear-down are one trace each: they are where a reader learns how a run began and ended.
        is_known = bool(identity.attempt_id)
        # Where the trace is not known yet, that is decided when it is.
        is_for_all = loop in PHASES or not is_known
        is_sampled = state.config.sampler != "always_off" if is_for_all else state.sampled(trace_id)
        trace = Trace(trace_id, state.clock.anchor, sampled=is_sampled, known=is_known, step=f"{loop} {number}")
        trace.began = begin
        root_id = ids.root_id(identity.attempt_id, loop, number)
        self.root: Stage | None = None
        if identity.emits_root or (tracing.sibling and loop != vocabulary.SETUP):
            self._open_root(name, trace, root_id, begin, attributes)
        if state.clock.set_ns:
            attributes = {**attributes, vocabulary.CLOCK_SET: state.clock.set_ns}
        self.container = Stage(f"{vocabulary.RANK_SPAN} {identity.rank}", attributes, coarse=True)
        self.container.trace, self.container.parent_id = trace, root_id
        self.container.span_id = ids.random_bits(64) or 1
        self.container.open(begin, is_current=False)
        tracing.container = self.container
        status.show_step(None if loop in PHASES else number)
        if not is_known:
            tracing.unidentified.append(self)

    def _open_root(self, name: str, trace: Trace, root_id: int, begin: int, attributes: dict[str, Value]) -> None:
        self.root = Stage(name, dict(attributes), coarse=True)
        self.root.trace, self.root.span_id = trace, root_id
        self.root.open(begin, is_current=False)

    def identify(self, attempt_id: str) -> None:
        """Derive the ids from the attempt, now that it is known."""
        trace = self.container.trace
        if trace is not None and not trace.known:
            self.container.parent_id = trace.derive(attempt_id)
            if not trace.sampled:
                tracing.unsampled.add(trace.trace_id)
            if self.root is None and state.identity.emits_root:  # a worker's that belongs to no other process's run
                self._open_root(trace.step.partition(" ")[0], trace, self.container.parent_id, self.container.began, {})

    def make_current(self) -> None:
        """Make the container current in this thread, so that a user's own spans nest below it.

        A span that happens to be current belongs to another trace: the step links to it.
        """
        outer = CONTEXT.get().get(SPAN_KEY)
        if outer is not None and outer.__class__ is not Stage and isinstance(outer, Span):
            self.container.outer = outer
            linked: SpanContext | None = outer.get_span_context()
            if linked is not None and linked.is_valid:
                self.container.add_link(linked)
        self.container.make_current()

    def leave(self) -> None:
        """Stop being current, but stay open."""
        self.container.leave()
        if tracing.container is self.container:
            tracing.container = None

    def close(self, end: int, error: BaseException | None = None, then: StepSpans | None = None) -> None:
        """End container and root at ``end`` (monotonic, ns); ``then`` is what has just begun, with its readings."""
        peak = peak_rss() if then is None else then.peak
        thread, cpu_ns = (get_ident(), thread_time_ns()) if then is None else then.cpu
        if error is not None:
            self.container.fail(error)
            if self.container.status is None:  # the program ends in it without a failure: it is not whole all the same
                self.container.set_attribute(vocabulary.TRUNCATED, True)
        readings: dict[str, Value] = {vocabulary.RSS_PEAK: peak, vocabulary.RSS_PEAK_EXACT: peak > self.peak}
        if thread == self.cpu[0]:
            self.cpu_ns = cpu_ns - self.cpu[1]
            readings[vocabulary.CPU_TIME] = self.cpu_ns / 1e9
        self.container.close(end, readings)
        state.queue.renew_finished()  # what is recorded from now on comes after the end of the step
        if self.root is not None:
            if error is not None:
                self.root.fail(error)
            self.root.close(end)
        if tracing.container is self.container:
            tracing.container = None


def open_phase(name: str, number: int, begin: int) -> None:
    """Open set-up or tear-down, which is also the time between two loops."""
    close_phase(begin)
    if not state.is_ending:
        tracing.phase = StepSpans(name, name, number, begin, {})


def close_phase(end: int, error: BaseException | None = None) -> None:
    """End set-up or tear-down if it is open."""
    tree, tracing.phase = tracing.phase, None
    if tree is not None:
        tree.close(end, error)


def open_setup() -> None:
    """Find a place for what has none: the step that was left last, a parent's, or set-up."""
    if tracing.loop is not None:
        tracing.loop.resume()
    elif tracing.phase is None and not join_parent():
        open_phase(vocabulary.SETUP, 0, state.started_ns)
    state.ensure_awake()  # so that a process which hangs before its first record is seen


def say_of_setup(said: dict[str, Value]) -> None:
    """Set attributes on the container of set-up, if that is open."""
    tree = tracing.phase
    if tree is not None and tree.container.trace is not None and tree.container.trace.step.startswith(vocabulary.SETUP):
        for key, value in said.items():
            tree.container.set_attribute(key, value)
