"""ROLL's own spans: a context that goes along in ``meta_info``, and tracers of whatever provider there is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.propagate import extract, inject

KEY = "_otel_ctx"
_suppressed = ContextVar("suppressed", default=False)


def inject_trace_context(meta_info: dict, context: Context | None = None) -> dict:
    carrier: dict = {}
    inject(carrier, context)
    meta_info[KEY] = carrier
    return meta_info


@contextmanager
def attach_trace_context(meta_info: dict | None) -> Iterator[Context]:
    found = Context() if meta_info is None else extract(meta_info.get(KEY, {}))
    token, other = attach(found), _suppressed.set(meta_info is None or KEY not in meta_info)
    try:
        yield found
    finally:
        _suppressed.reset(other)
        detach(token)


def get_tracer(name: str = "roll") -> trace.Tracer:
    return trace.NoOpTracer() if _suppressed.get() else trace.get_tracer(name)
