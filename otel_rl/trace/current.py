"""Where this thread or task is: the innermost stage of ours, and OpenTelemetry's own context.

Stages find each other by a variable of their own. They are current in OpenTelemetry's context, too, while only we
serve tracers (``is_shared``): then other libraries' spans nest below them. A program with a tracer provider of its own
sees no trace of them there.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import opentelemetry.trace as api
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.trace import INVALID_SPAN, INVALID_SPAN_CONTEXT, Span, SpanContext
from opentelemetry.trace.propagation import set_span_in_context

from otel_rl.process.state import state
from otel_rl.trace.memory import tracing

SPAN_KEY = next(iter(set_span_in_context(INVALID_SPAN, Context())))
"""The key under which OpenTelemetry keeps the current span; its public API is asked once, each time costs 0.5 us."""


def _context_variable() -> ContextVar[Context]:
    """Find the variable of OpenTelemetry's context; if it is no such variable, make one of our own."""
    now = get_current()
    token = attach(now)
    variable: ContextVar[Context] = getattr(token, "var", None) or ContextVar("otel_rl", default=now)
    detach(token)
    return variable


CONTEXT = _context_variable()
"""OpenTelemetry's context."""
CURRENT: ContextVar[Any] = ContextVar("otel_rl_stage", default=None)
"""The innermost stage that was opened in this thread or task; None where none was."""
put = dict.__setitem__
"""A ``Context`` refuses to be changed; a copy that nothing refers to yet may be."""


def is_shared() -> bool:
    """Return whether stages are current in OpenTelemetry's context, so that spans of others nest below them."""
    return api._TRACER_PROVIDER is tracing.provider or state.config.join_spans


def seen_without_us(outside: Context) -> SpanContext:
    """Return what is current in a context as it would be without us, below which a stage or a span of ours lies."""
    span = outside.get(SPAN_KEY)
    seen = span.get_span_context() if isinstance(span, Span) else None
    return INVALID_SPAN_CONTEXT if seen is None else seen


def leave_context() -> None:
    """Remove what is ours from this thread's context; what else the program has put there stays."""
    context = outside = CONTEXT.get()
    while (further := getattr(outside.get(SPAN_KEY), "outside", None)) is not None:
        outside = further
    if outside is not context:
        CONTEXT.set(with_span_of(outside, context))


def with_span_of(outside: Context, context: Context) -> Context:
    """Return a context whose current span is that of another one."""
    values = {**context, SPAN_KEY: outside.get(SPAN_KEY)}
    if values[SPAN_KEY] is None:
        del values[SPAN_KEY]
    return Context(values)
