"""W3C trace context: the headers that name a span to another process, and the span that headers name."""

from __future__ import annotations

import os
from collections.abc import Mapping

from opentelemetry.context import Context
from opentelemetry.trace import Span, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from otel_rl.trace.current import is_shared

W3C = TraceContextTextMapPropagator()


def headers() -> dict[str, str]:
    """Return what names the current span, as far as a program's own spans may hang below it.

    Empty if there is none, or if ``OTEL_PROPAGATORS`` leaves ``tracecontext`` out.
    """
    carrier: dict[str, str] = {}
    if is_shared() and "tracecontext" in (os.environ.get("OTEL_PROPAGATORS") or "tracecontext"):
        W3C.inject(carrier)
    return carrier


def named(given: Mapping[str, str]) -> Span | None:
    """Return the span that headers name; None if they name none."""
    span = get_current_span(W3C.extract(given, Context()))
    return span if span.get_span_context().is_valid else None
