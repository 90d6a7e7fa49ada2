"""OpenTelemetry's context as the hot path uses it: its variable and its key for the current span, found once."""

from __future__ import annotations

from contextvars import ContextVar

from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.trace import INVALID_SPAN
from opentelemetry.trace.propagation import set_span_in_context

SPAN_KEY = next(iter(set_span_in_context(INVALID_SPAN, Context())))
"""The key under which OpenTelemetry keeps the current span; its public API is asked once, each time costs 0.5 us."""


def _context_variable() -> ContextVar[Context]:
    """Find the variable that holds OpenTelemetry's context; where it is no such variable, stages have their own."""
    now = get_current()
    token = attach(now)
    variable: ContextVar[Context] = getattr(token, "var", None) or ContextVar("otel_rl", default=now)
    detach(token)
    return variable


CURRENT = _context_variable()
put = dict.__setitem__
"""A ``Context`` refuses to be changed; a copy that nobody has seen yet may be."""
