"""Split one OTLP request into smaller ones, if the server accepts none of its size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_rl.journal.frame import Signal

Record = tuple[Any, Any, Any]
"""The messages of the resource, the scope and the span, log record or metric."""

MESSAGES: Final[dict[Signal, Any]] = {
    "traces": ExportTraceServiceRequest,
    "metrics": ExportMetricsServiceRequest,
    "logs": ExportLogsServiceRequest,
}
FIELDS: Final[dict[Signal, tuple[str, str, str]]] = {
    "traces": ("resource_spans", "scope_spans", "spans"),
    "metrics": ("resource_metrics", "scope_metrics", "metrics"),
    "logs": ("resource_logs", "scope_logs", "log_records"),
}


def records(signal: Signal, payload: bytes) -> list[Record]:
    """Return the records of a request; of metrics each with all its points."""
    resources, scopes, items = FIELDS[signal]
    return [
        (resource, scope, item)
        for resource in getattr(MESSAGES[signal].FromString(payload), resources)
        for scope in getattr(resource, scopes)
        for item in getattr(scope, items)
    ]


def halves(signal: Signal, payload: bytes) -> list[tuple[bytes, int]]:
    """Return the two halves of a request with their numbers of spans, points or log records; nothing of one record."""
    found = records(signal, payload)
    middle = len(found) // 2
    return [(build(signal, part), _count(signal, part)) for part in (found[:middle], found[middle:]) if middle]


def build(signal: Signal, parts: Sequence[Record]) -> bytes:
    """Make a request of records, with their resources and scopes, in their order."""
    resources, scopes, items = FIELDS[signal]
    message = MESSAGES[signal]()
    last: tuple[Any, Any] = (None, None)
    outer: Any = None
    inner: Any = None
    for resource, scope, item in parts:
        if resource is not last[0]:
            outer = getattr(message, resources).add(schema_url=resource.schema_url)
            outer.resource.CopyFrom(resource.resource)
        if resource is not last[0] or scope is not last[1]:
            inner = getattr(outer, scopes).add(schema_url=scope.schema_url)
            inner.scope.CopyFrom(scope.scope)
        getattr(inner, items).append(item)
        last = resource, scope
    payload: bytes = message.SerializeToString()
    return payload


def _count(signal: Signal, parts: Sequence[Record]) -> int:
    if signal != "metrics":
        return len(parts)
    kinds = [(metric, metric.WhichOneof("data")) for _, _, metric in parts]
    return sum(len(getattr(metric, kind).data_points) for metric, kind in kinds if kind)
