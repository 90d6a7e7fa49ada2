"""Stages: light spans that OpenTelemetry takes for its own. This file is the hot path; read it line by line."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from contextvars import Token
from time import monotonic_ns
from types import TracebackType
from typing import Any, TypeVar, cast

from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, Span, SpanContext, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from otel_rl import vocabulary
from otel_rl.content import is_content, text_of
from otel_rl.current import CURRENT, SPAN_KEY, put
from otel_rl.exhausted import is_out_of_memory, record_exhausted
from otel_rl.guard import errors, guard
from otel_rl.ids import random_bits
from otel_rl.importlib_bootstrap import not_counted
from otel_rl.no_stage import NoStage
from otel_rl.probes.memory import FRESH_NS, Reading
from otel_rl.records import SpanEvent, SpanLink, Value
from otel_rl.runtime import QUEUE_LIMIT, Trace, state
from otel_rl.values import NUMBERS, clean, clean_all, clean_key
from otel_rl.vocabulary import SHORT_NAMES

Function = TypeVar("Function", bound=Callable[..., Any])

MAX_KEYS = 1024
MAX_KEPT = 1024
"""Attributes, events and links that an open stage keeps; the encoder keeps 128 of them and counts the others."""
SAMPLED = TraceFlags(TraceFlags.SAMPLED)
NOT_SAMPLED = TraceFlags(TraceFlags.DEFAULT)


class Stage(Span):
    """One span of a step: a context manager, a decorator, and an ``opentelemetry.trace.Span``.

    It is current in the OpenTelemetry context while it is open, so spans of other libraries nest below it. Cost of
    ``with``: at most 3 us without memory readings (``benchmarks/hotpath.py``); nothing is encoded or written here.
    """

    __slots__ = (
        "after", "attributes", "before", "began", "coarse", "ended", "events", "kind", "links", "name", "parent_id",
        "span_id", "status", "token", "trace",
    )  # fmt: skip

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
        self.token: Token[Context] | None = None
        self.before: Reading | None = None
        self.after: Reading | None = None
        self.events: list[SpanEvent] | None = None
        self.links: list[SpanLink] | None = None
        self.status: tuple[int, str] | None = None
        self.kind = 1

    # --- context manager ----------------------------------------------------------------------------------------------

    def __enter__(self) -> Stage:
        if self.trace is not None:  # two spans cannot share one object
            errors["open a stage a second time"] += 1
        elif state.on:
            context = CURRENT.get()
            self.open(context, context.get(SPAN_KEY))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end = 0
        try:
            if self.trace is None:  # never opened: with torch.compile even to read a clock would break the graph
                return
            end = monotonic_ns()
            if error is not None:
                with guard("record an exception"):
                    self.fail(error)
            self.close(end)
        except BaseException:  # a handler of a signal raised: the stage has ended all the same
            self.close(end or monotonic_ns())
            self._end_interrupted(end)  # where it had begun to
            raise

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
            if state.is_compiling():
                return function(*args, **kwargs)
            with Stage(name, attributes and dict(attributes), coarse=coarse):
                return function(*args, **kwargs)

        return cast("Function", in_stage)

    # --- recording ----------------------------------------------------------------------------------------------------

    def open(self, context: Context | None = None, parent: object = None, begin: int = 0) -> None:
        """Begin now, or at ``begin`` (monotonic, ns); with a ``context``: below ``parent``, as its current span.

        Each call of a function costs 1 to 4 us where stages begin, between matrix products: here are none of ours.
        """
        try:
            if context is not None:
                above = parent if parent.__class__ is Stage and parent.trace and not parent.ended else _stage_of(parent)
                self.trace = above.trace
                self.parent_id = above.span_id
                self.span_id = random_bits(64) or 1
                inner = Context(context)
                put(inner, SPAN_KEY, self)
                self.token = CURRENT.set(inner)
            now = monotonic_ns()
            self.began = begin or now  # before anybody can find it among the open ones
            if state.exhausted:
                state.exhausted = 0  # the program goes on: another error may get the same id
            state.open.add(self)
            if now - state.probe_ns > FRESH_NS:
                state.reading = state.read_memory()
                state.probe_ns = now = monotonic_ns()
                self.began = begin or now
            self.before = state.reading
            if state.device is not None:
                state.device.begin(self)
                if not self.ended:  # by an exit on another thread, meanwhile
                    self.began = begin or monotonic_ns()
        except BaseException:  # a handler of a signal raised: nobody ends what did not begin
            if context is not None:
                CURRENT.set(context)
            self.token = None
            self.close(monotonic_ns())
            raise

    def close(self, end: int, described: dict[str, Value] | None = None) -> None:
        """End at ``end`` (monotonic, ns); a second call does nothing, nor does one in a forked child.

        Args:
            end: when it ended.
            described: further attributes; what has been set before counts only where they say nothing.
        """
        try:
            token = self.token
            if token is not None:
                self.token = None
                try:
                    CURRENT.reset(token)
                except ValueError:  # in another task or thread than it began in there is nothing to restore
                    errors["end a stage where it began"] += 1
            if self.ended or self not in state.open:  # also while another thread ends it, as an exit does
                return
            self.ended = end if end > self.began else self.began
            behind = state.behind
            if behind is not None:
                behind(self)
            if isinstance(described, dict):
                self.attributes = {**self.attributes, **described} if self.attributes else described
            if end - state.probe_ns > FRESH_NS:
                state.reading = state.read_memory()
                state.probe_ns = end
            self.after = state.reading
            if state.device is not None:
                state.device.end(self)
            # First this: at every moment the flusher finds it in the queue or among the open ones.
            if state.awake and len(state.queue) < QUEUE_LIMIT:
                state.queue.append(self)
            else:
                state.add(self)
            state.open.discard(self)
        except BaseException:
            self._end_interrupted(end)
            raise

    def _end_interrupted(self, end: int) -> None:
        """Give what is known of a stage to the flusher, once, where a handler of a signal raised while it ended."""
        if self in state.open:
            if state.device is not None:
                state.device.forget(self)
            self.ended = self.ended or max(end, self.began)
            if self not in tuple(state.queue):
                state.add(self)
            state.open.discard(self)

    def fail(self, error: BaseException) -> None:
        """Note how the stage ended; the end of an iterator, a coroutine or a program that succeeds is no failure."""
        if self not in state.open or isinstance(error, (StopIteration, StopAsyncIteration, GeneratorExit)):
            return
        if isinstance(error, SystemExit) and not error.code:
            return
        self.set_attribute(vocabulary.ERROR_TYPE, type(error).__qualname__)
        if self.status is None:
            self.status = (2, text_of(error) if state.config.capture_content else "")
        self.record_exception(error)
        if is_out_of_memory(error) and state.exhausted != id(error):
            state.exhausted = id(error)  # never the error itself: it would keep every tensor of its frames alive
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
        if self.trace is None:
            return INVALID_SPAN.get_span_context()
        return SpanContext(
            self.trace.trace_id,
            self.span_id,
            is_remote=False,
            trace_flags=SAMPLED if self.trace.sampled else NOT_SAMPLED,
        )

    def set_attribute(self, key: str, value: Any) -> None:
        """Set one attribute; any value is taken, a tensor on a device is described and not read.

        Like everything else that is set on a stage which has ended, one that comes later is ignored.
        """
        if self.ended:
            return
        cleaned = value if type(value) in NUMBERS else clean(value)
        if type(key) is not str:
            key = clean_key(key)
        if cleaned is None or not key:
            return
        if self.attributes is None:
            self.attributes = {}
        elif len(self.attributes) >= MAX_KEPT and key not in self.attributes:
            errors["keep more than 1,024 attributes of a stage"] += 1
            return
        self.attributes[key] = cleaned

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Set several attributes."""
        with guard("set attributes"):
            for key, value in attributes.items():
                self.set_attribute(key, value)

    def add_event(self, name: str, attributes: Mapping[str, Any] | None = None, timestamp: int | None = None) -> None:
        """Add a point in time; ``timestamp`` in ns since 1970. Of a stage that was never opened there is no now."""
        if self.ended or (self.trace is None and timestamp is None):
            return
        time_ns = timestamp or monotonic_ns() + (self.trace.anchor if self.trace else 0)
        with guard("add an event"):
            self.events = _with_room(self.events)
            self.events.append(SpanEvent(clean_key(name), time_ns, clean_all(attributes)))

    def add_link(self, context: SpanContext, attributes: Mapping[str, Any] | None = None) -> None:
        """Refer to another span."""
        if self.ended:
            return
        with guard("add a link"):
            self.links = _with_room(self.links)
            self.links.append(SpanLink(context.trace_id, context.span_id, clean_all(attributes)))

    def update_name(self, name: str) -> None:
        """Rename the span."""
        if not self.ended:
            self.name = clean_key(name)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy or a pickle of a stage is a new one of the same name: where it was open, it is not."""
        return Stage, (self.name,)

    def is_recording(self) -> bool:
        """Whether the stage is open and what is set on it will be kept."""
        return self in state.open

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """Set the status; ok is final and unset says nothing, as OpenTelemetry wants it.

        OpenTelemetry itself puts the text of the exception that is being handled there: that is content.
        """
        code, text = (status.status_code, status.description) if isinstance(status, Status) else (status, description)
        is_final = self.ended or (self.status is not None and self.status[0] == StatusCode.OK.value)
        if not is_final and code in (StatusCode.OK, StatusCode.ERROR):
            description = str(clean(text) or "") if code is StatusCode.ERROR else ""
            self.status = (code.value, "" if is_content(description) else description)

    def record_exception(
        self,
        exception: BaseException,
        attributes: Mapping[str, Any] | None = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        """Add an exception event; text and traceback are content, so only with ``OTEL_RL_CAPTURE_CONTENT``."""
        values: dict[str, Any] = {vocabulary.EXCEPTION_TYPE: type(exception).__qualname__, **(attributes or {})}
        if state.config.capture_content:
            import traceback

            values[vocabulary.EXCEPTION_MESSAGE] = text_of(exception)
            values[vocabulary.EXCEPTION_STACKTRACE] = "".join(traceback.format_exception(exception))
        self.add_event("exception", values, timestamp)


def _with_room(items: list[Any] | None) -> list[Any]:
    """Forget the oldest events or links of a stage that collects them without end."""
    if items is None:
        return []
    if len(items) >= MAX_KEPT:
        errors["keep more than 1,024 events or links of a stage"] += 1
        del items[0]
    return items


_NO_STAGE = cast("Stage", NoStage())


def stage(name: str, /, **attributes: Any) -> Stage:
    """Open a stage of the current step: ``with otel_rl.stage("reward", batch_size=64) as span:``, or a decorator.

    Args:
        name: a name of the vocabulary without its ``rl.`` (``"reward"`` opens ``rl.reward``), or one of your own.
        attributes: keyword ``k`` becomes the attribute ``rl.k``; any value is taken.

    Raises:
        TypeError: the decorator was written without its name.

    Returns:
        The span. Without ``instrument()``, and inside a compiled region, it records nothing.

    Emits: a span, and its duration (histogram, s). Cost: at most 3 us (``benchmarks/hotpath.py``).
    """
    if state.is_compiling():
        return _NO_STAGE
    if type(name) is not str:
        if callable(name):
            raise TypeError(f'otel_rl.stage takes a name: write @otel_rl.stage("reward") before {name!r}')
        name = clean_key(name)
    values: dict[str, Any] | None = None
    if attributes:
        values = {_KEYS[k]: v if type(v) in NUMBERS else clean(v) for k, v in attributes.items()}
        if None in values.values():
            values = {key: value for key, value in values.items() if value is not None}
    return Stage(SHORT_NAMES.get(name, name) or "unnamed", values)


class _Keys(dict[str, str]):
    def __missing__(self, key: str) -> str:
        if len(self) < MAX_KEYS:
            self[key] = f"rl.{key}"
        return f"rl.{key}"


_KEYS = _Keys()
"""Keyword to attribute key; a dict, because a call costs more than all else that ``stage`` does with an attribute."""


def current_stage() -> Stage | None:
    """Return the innermost open stage of this thread or task, else the container of this rank."""
    span = CURRENT.get().get(SPAN_KEY)
    return span if span.__class__ is Stage else cast("Stage | None", state.container)


def _stage_of(parent: Any) -> Stage:
    """Find or make the stage that stands for a parent that is none of ours, or that has ended."""
    if isinstance(parent, Stage) and parent.trace and not _is_container(parent):
        return parent
    with guard("find the parent of a stage"):
        context = None if parent is None or isinstance(parent, Stage) else parent.get_span_context()
        if context is not None and context.is_valid:
            return _stand_in(context.trace_id, context.span_id, sampled=context.trace_flags.sampled)
        if state.container is None:
            state.open_setup()
    return state.container or _stand_in(random_bits(128), 0, sampled=True)


def _is_container(stage: Stage) -> bool:
    """A container that ended may be current again: behind a stage that began inside its step and outlived it."""
    return stage.name.startswith(vocabulary.CONTAINER)


def _stand_in(trace_id: int, span_id: int, *, sampled: bool) -> Stage:
    stand_in = Stage("")
    stand_in.trace = Trace(trace_id, state.clock.anchor, sampled=sampled)
    stand_in.span_id = span_id
    return stand_in
