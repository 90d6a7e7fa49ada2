"""Stages: light spans that OpenTelemetry takes for its own. This file is the hot path; read it line by line."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextvars import Token
from types import TracebackType
from typing import Any, TypeVar, cast

import opentelemetry.trace as api
from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN_CONTEXT, SpanContext, TraceFlags, format_span_id, format_trace_id

from otel_rl import vocabulary
from otel_rl.clock import monotonic_ns
from otel_rl.guard import errors, guard
from otel_rl.ids import random_bits
from otel_rl.journal.page import BEGAN, STAGE
from otel_rl.probes.memory import FRESH_NS, Reading, probes
from otel_rl.process.hooked import hooking
from otel_rl.process.state import QUEUE_LIMIT, Trace, state
from otel_rl.process.status import status
from otel_rl.records import SpanEvent, SpanLink, Value
from otel_rl.trace.current import CONTEXT, CURRENT, SPAN_KEY, is_shared, put, seen_without_us, with_span_of
from otel_rl.trace.importlib_bootstrap import not_counted
from otel_rl.trace.memory import tracing
from otel_rl.trace.noop import NoStage
from otel_rl.trace.out_of_memory import is_out_of_memory, record_exhausted
from otel_rl.trace.settable import Settable, text_of
from otel_rl.trace.values import KEYS, NUMBERS, clean, clean_key
from otel_rl.vocabulary import SHORT_NAMES

Function = TypeVar("Function", bound=Callable[..., Any])

SAMPLED = TraceFlags(TraceFlags.SAMPLED)
NOT_SAMPLED = TraceFlags(TraceFlags.DEFAULT)


class Stage(Settable):
    """One span of a step: a context manager, a decorator, and an ``opentelemetry.trace.Span``.

    While it is open, spans of other libraries nest below it, unless the program has a tracer provider of its own (see
    ``current``). Cost of ``with``: at most 3 us without memory readings (``benchmarks/hotpath.py``); nothing is encoded
    or written here.
    """

    __slots__ = (
        "after", "before", "began", "coarse", "inner", "outer", "outside", "parent_id", "span_id", "token",
    )  # fmt: skip

    kind = 1
    """``INTERNAL``, of OTLP."""

    def __init__(self, name: str, attributes: dict[str, Value] | None = None, *, coarse: bool = False) -> None:
        self.name = name
        self.attributes = attributes
        self.coarse = coarse
        """Coarse stages, which integrations open, read the memory of a device at both ends."""
        self.trace: Trace | None = None
        self.span_id = 0
        self.parent_id = 0
        self.began = 0
        """Monotonic, ns."""
        self.ended = 0
        """Monotonic, ns; 0 while open."""
        self.token: Token[Any] | None = None
        """Makes it no longer current."""
        self.outside: Any = None
        """OpenTelemetry's context outside of it, if it is or was current there, too."""
        self.inner: Context | None = None
        """OpenTelemetry's context in which it is current."""
        self.outer: Any = None
        """Another library's span that surrounds it, if there is one."""
        self.before: Reading | None = None
        self.after: Reading | None = None
        self.events: list[SpanEvent] | None = None
        self.links: list[SpanLink] | None = None
        self.status: tuple[int, str] | None = None

    # --- context manager ----------------------------------------------------------------------------------------------

    def __enter__(self) -> Stage:
        if self.trace is not None:  # two spans cannot share one object
            errors["open a stage a second time"] += 1
        elif state.on:
            self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.trace is None:  # never opened: with torch.compile even to read a clock would break the graph
            return
        end = monotonic_ns()
        if error is not None:
            with guard("record an exception"):
                self.fail(error)
        self.close(end)

    @not_counted
    def __call__(self, function: Function) -> Function:
        """Decorate a function or a coroutine function: every call is a stage of its own."""
        name, attributes, coarse = self.name, self.attributes, self.coarse
        kinds = function, type(function).__call__  # the second of an object that can be called
        if any(inspect.isgeneratorfunction(kind) or inspect.isasyncgenfunction(kind) for kind in kinds):
            called = getattr(function, "__name__", type(function).__name__)
            raise TypeError(f"stage({name!r}) cannot decorate the generator {called}: open the stage inside it")
        if any(map(inspect.iscoroutinefunction, kinds)):

            @functools.wraps(function)
            async def in_stage_async(*args: Any, **kwargs: Any) -> Any:
                with Stage(name, attributes and dict(attributes), coarse=coarse):
                    return await function(*args, **kwargs)

            return cast("Function", in_stage_async)

        @functools.wraps(function)
        def in_stage(*args: Any, **kwargs: Any) -> Any:
            if hooking.is_compiling():
                return function(*args, **kwargs)
            with Stage(name, attributes and dict(attributes), coarse=coarse):
                return function(*args, **kwargs)

        return cast("Function", in_stage)

    # --- recording ----------------------------------------------------------------------------------------------------

    def open(self, begin: int = 0, *, is_current: bool = True) -> None:
        """Begin now, or at ``begin`` (monotonic, ns), below the innermost open stage of this thread or task.

        Each call of a function costs 1 to 4 us where stages begin, between matrix products: here are none of ours.

        Args:
            begin: when it began.
            is_current: whether what follows is inside it; otherwise its trace and parent are set already.
        """
        if is_current:
            current, context = CURRENT.get(), CONTEXT.get()
            shared = api._TRACER_PROVIDER is tracing.provider or state.config.join_spans
            outer = context.get(SPAN_KEY)
            parent = outer if shared and outer.__class__ is Stage else current
            if parent is None or parent.ended or not parent.trace:
                parent = _parent_of(parent, outer if shared else None)
            self.trace, self.parent_id = parent.trace, parent.span_id
            self.span_id = random_bits(64) or 1
            if outer is not parent and outer is not None:
                self._add_outer(outer, parent)
            self.token = CURRENT.set(self)
            if shared:
                self.outside = context
                self.inner = inner = Context(context)
                put(inner, SPAN_KEY, self)
                CONTEXT.set(inner)
        now = monotonic_ns()
        self.began = begin or now  # before anybody can find it among the open ones
        if tracing.exhausted:
            tracing.exhausted = 0  # the program goes on: another error may get the same id
        tracing.open[self] = None
        if now - probes.read_ns > FRESH_NS:
            probes.reading = probes.read_memory()
            probes.read_ns = now = monotonic_ns()
            self.began = begin or now
        self.before = probes.reading
        if probes.device is not None:
            probes.device.begin(self)
            if not self.ended:  # by an exit on another thread, meanwhile
                self.began = begin or monotonic_ns()
        if is_current:
            words = status.words
            words[STAGE] = status.codes[self.name]
            words[BEGAN] = self.began

    def make_current(self) -> None:
        """Make a span current that has its ids already."""
        context = CONTEXT.get()
        self.token = CURRENT.set(self)
        if is_shared():
            self.outside = context
            self.inner = Context({**context, SPAN_KEY: self})
            CONTEXT.set(self.inner)

    def _add_outer(self, outer: Any, parent: Stage) -> None:
        with guard("read the span outside a stage"):
            self.outer = outer
            context = outer.get_span_context()
            if outer is not parent.outer and outer.__class__ is not Stage and context is not None and context.is_valid:
                named: dict[str, Value] = {
                    vocabulary.OUTER_TRACE: format_trace_id(context.trace_id),
                    vocabulary.OUTER_SPAN: format_span_id(context.span_id),
                }
                self.attributes = {**named, **self.attributes} if self.attributes else named

    def close(self, end: int, described: dict[str, Value] | None = None) -> None:
        """End at ``end`` (monotonic, ns); a second call does nothing, nor does one in a forked child.

        Args:
            end: when it ended.
            described: further attributes; what has been set before counts only where they say nothing.
        """
        token = self.token
        if token is not None:
            self.leave()
        if self.ended or self not in tracing.open:  # also while another thread ends it, as an exit does
            return
        self.ended = end if end > self.began else self.began
        tracing.last_end = self.ended
        if isinstance(described, dict):
            self.attributes = {**self.attributes, **described} if self.attributes else described
        if end - probes.read_ns > FRESH_NS:
            probes.reading = probes.read_memory()
            probes.read_ns = end
        self.after = probes.reading
        if probes.device is not None:
            probes.device.end(self)
        # First this: at every moment the flusher finds it in the queue or among the open ones.
        if state.awake and len(state.queue) < QUEUE_LIMIT:
            state.queue.append(self)
        else:
            state.add(self)
        tracing.open.pop(self, None)
        if token is not None:
            outer, words = token.old_value, status.words
            if outer.__class__ is not Stage or not outer.began or outer.ended or outer is tracing.container:
                outer = None if outer is tracing.container else tracing.last_open()
            if outer is None:
                words[STAGE] = 0
                words[BEGAN] = self.ended
            else:
                words[STAGE] = status.codes[outer.name]
                words[BEGAN] = outer.began

    def leave(self) -> None:
        """Stop being current, and stay open; what the program has put into the context meanwhile stays there."""
        token, inner = self.token, self.inner
        if token is None:
            return
        try:
            CURRENT.reset(token)
        except ValueError:  # in another task or thread than it began in there is nothing to restore
            inner = None
        if inner is not None:
            context = CONTEXT.get()
            if context is inner:
                CONTEXT.set(self.outside)
            elif isinstance(context.get(SPAN_KEY), Stage):
                CONTEXT.set(with_span_of(self.outside, context))
        self.token = self.inner = None

    def fail(self, error: BaseException) -> None:
        """Set how the stage ended; the end of an iterator, a coroutine or a program that succeeds is no failure."""
        if self not in tracing.open or isinstance(error, (StopIteration, StopAsyncIteration, GeneratorExit)):
            return
        if isinstance(error, SystemExit) and not error.code:
            return
        self.set_attribute(vocabulary.ERROR_TYPE, type(error).__qualname__)
        if self.status is None:
            self.status = (2, text_of(error) if state.config.captures_errors else "")
        self.record_exception(error)
        if is_out_of_memory(error) and tracing.exhausted != id(error):
            tracing.exhausted = id(error)  # never the error itself: it would keep every tensor of its frames alive
            record_exhausted()

    # --- as the encoder reads it --------------------------------------------------------------------------------------

    @property
    def trace_id(self) -> int:
        """Trace id, 0 before the stage was opened."""
        return self.trace.trace_id if self.trace else 0

    @property
    def start_ns(self) -> int:
        """Begin on the wall clock, ns since 1970."""
        return self.began + self.trace.anchor if self.trace else 0

    @property
    def end_ns(self) -> int:
        """End on the wall clock, ns since 1970."""
        return self.ended + self.trace.anchor if self.trace else 0

    # --- opentelemetry.trace.Span -------------------------------------------------------------------------------------

    def end(self, end_time: int | None = None) -> None:
        """End now, or at ``end_time`` (ns since 1970); what is to come counts as now."""
        if self.trace is None:
            return
        now = monotonic_ns()
        if end_time is not None:
            with guard("read the end of a span"):
                now = min(now, int(end_time) - self.trace.anchor)
        self.close(now)

    def get_span_context(self) -> SpanContext:
        """Return what propagates to other threads, processes and machines."""
        if self.outside is not None and not is_shared():  # the program has set its own provider since
            return seen_without_us(self.outside)
        return self.own_context

    @property
    def own_context(self) -> SpanContext:
        """Ids of the stage, whoever serves tracers."""
        if self.trace is None:
            return INVALID_SPAN_CONTEXT
        flags = SAMPLED if self.trace.sampled else NOT_SAMPLED
        return SpanContext(self.trace.trace_id, self.span_id, is_remote=False, trace_flags=flags)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what makes a new stage of the same name: a copy or an unpickled stage is not open."""
        return Stage, (self.name,)

    def is_recording(self) -> bool:
        """Return whether the stage is open and what is set on it will be kept."""
        return self in tracing.open


_NO_STAGE = cast("Stage", NoStage())


def stage(name: str, /, **attributes: Any) -> Stage:
    """Open a stage of the current step: ``with otel_rl.stage("reward", batch_size=64) as span:``, or a decorator.

    Args:
        name: a name of the vocabulary without its ``rl.`` (``"reward"`` opens ``rl.reward``), or one of your own.
        attributes: keyword ``k`` becomes the attribute ``rl.k``, ``rl.k`` stays as it is; any value is possible.

    Raises:
        TypeError: the decorator was written without its name.

    Returns:
        The span. Without ``instrument()``, and inside a compiled region, it records nothing.

    Emits: a span, and its duration (histogram, s). Cost: at most 3 us (``benchmarks/hotpath.py``).
    """
    if hooking.is_compiling():
        return _NO_STAGE
    if type(name) is not str:
        if callable(name):
            raise TypeError(f'otel_rl.stage takes a name: write @otel_rl.stage("reward") before {name!r}')
        name = clean_key(name)
    values: dict[str, Any] | None = None
    if attributes:
        values = {KEYS[k]: v if type(v) in NUMBERS else clean(v) for k, v in attributes.items()}
        if None in values.values():
            values = {key: value for key, value in values.items() if value is not None}
    return Stage(SHORT_NAMES.get(name, name) or "unnamed", values)


def innermost() -> Stage | None:
    """Return the innermost open stage of this thread or task; None if there is none. Cost: 0.2 us.

    A thread that was given OpenTelemetry's context of another one (``attach``) is inside the stage of that one.
    """
    stage: Stage | None = CURRENT.get()
    if stage is None and is_shared():
        span = CONTEXT.get().get(SPAN_KEY)
        stage = span if span.__class__ is Stage else getattr(span, "otel_rl_stage", None)
    return _nearest_open(stage) if stage is not None and stage.ended else stage


def current_stage() -> Stage | None:
    """Return the innermost open stage of this thread or task, else the container of this rank."""
    return innermost() or tracing.container


def current_parent() -> Any:
    """Return what a request belongs to: the innermost stage, else the span of a caller elsewhere, else None.

    A rollout may generate several times: its requests belong to all of it.
    """
    stage = innermost()
    if stage is None:
        return _caller(CONTEXT.get().get(SPAN_KEY)) if is_shared() else None
    return rollout_around(stage) if stage.name == vocabulary.SAMPLE_GENERATE else stage


def rollout_around(generating: Stage) -> Stage:
    """Return the rollout that ``rl.sample.generate`` is directly inside, else that stage itself."""
    opened = (one for one in tracing.open.copy() if isinstance(one, Stage) and one.name == vocabulary.SAMPLE)
    return next((one for one in opened if one.span_id == generating.parent_id), generating)


def _parent_of(parent: Stage | None, outer: Any) -> Stage:
    """Find or make the stage that stands for one that is not open, or for none."""
    parent = innermost() if parent is None else _nearest_open(parent)
    if parent is not None:
        return parent
    with guard("find the parent of a stage"):
        caller = None if outer.__class__ is Stage else _caller(outer)
        if caller is not None:
            state.ensure_awake()  # so that a process which hangs in its first call is seen
            context = caller.get_span_context()
            stand_in = _stand_in(context.trace_id, context.span_id, sampled=context.trace_flags.sampled)
            stand_in.outer = caller
            return stand_in
        if tracing.container is None:
            tracing.open_setup()
    return tracing.container or _stand_in(random_bits(128), 0, sampled=True)


def _caller(span: Any) -> Any:
    """Return the span if this process works for it: another process's, or a server's that makes no steps."""
    with guard("find the caller's span"):
        context = None if span is None else span.get_span_context()
        if context is not None and context.is_valid and (context.is_remote or tracing.container is None):
            return span
    return None


def _nearest_open(stage: Stage) -> Stage | None:
    """Return the nearest open stage, since a generator may leave one current that has ended; None: the container."""
    if stage.trace is None or _is_container(stage):
        return None
    if not stage.ended or not stage.trace.step or stage.trace.is_carried:  # in a caller's trace it stays the parent
        return stage
    return next((one for one in tracing.open.copy() if isinstance(one, Stage) and one.span_id == stage.parent_id), None)


def _is_container(stage: Stage) -> bool:
    """Return whether a stage is a container; one that ended may be current again, after a stage that outlived it."""
    return stage.name.startswith(vocabulary.CONTAINER)


def _stand_in(trace_id: int, span_id: int, *, sampled: bool) -> Stage:
    stand_in = Stage("")
    stand_in.trace = Trace(trace_id, state.clock.anchor, sampled=sampled)
    stand_in.span_id = span_id
    return stand_in
