"""Split one OTLP request into smaller ones, if the server accepts none of its size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from otel_rl.journal.frame import Signal

Record = tuple[Any, ...]
"""The messages from the resource down to the record: span, log record or data point (below its metric)."""

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
    """Return the records of a request.

    Raises:
        DecodeError: it is none.
    """
    resources, scopes, items = FIELDS[signal]
    found = [
        (resource, scope, item)
        for resource in getattr(MESSAGES[signal].FromString(payload), resources)
        for scope in getattr(resource, scopes)
        for item in getattr(scope, items)
    ]
    if signal != "metrics":
        return list(found)
    return [(*outer, metric, point) for *outer, metric in found for point in _points(metric)]


def halves(signal: Signal, payload: bytes) -> Iterator[tuple[bytes, int]]:
    """Return the two halves of a request with their numbers of records; one record stays one.

    Raises:
        DecodeError: it is none.
    """
    found = records(signal, payload)
    middle = (len(found) + 1) // 2
    for part in (found[:middle], found[middle:]):
        if part:
            yield build(signal, part), len(part)


def build(signal: Signal, parts: Sequence[Record]) -> bytes:
    """Make a request of records, with their resources and scopes, in their order."""
    resources, scopes, items = FIELDS[signal]
    message = MESSAGES[signal]()
    last: Record = (None, None, None)
    group: Any = None
    inner: Any = None
    points: Any = None
    for record in parts:
        resource, scope, item = record[:3]
        if resource is not last[0]:
            group = getattr(message, resources).add(schema_url=resource.schema_url)
            group.resource.CopyFrom(resource.resource)
        if resource is not last[0] or scope is not last[1]:
            inner = getattr(group, scopes).add(schema_url=scope.schema_url)
            inner.scope.CopyFrom(scope.scope)
        if signal != "metrics":
            getattr(inner, items).append(item)
        else:
            if item is not last[2]:
                points = _without_points(item, getattr(inner, items).add())
            points.append(record[3])
        last = record
    payload: bytes = message.SerializeToString()
    return payload


def _points(metric: Any) -> Any:
    kind = metric.WhichOneof("data")
    return getattr(metric, kind).data_points if kind else ()


def _without_points(metric: Any, target: Metric) -> Any:
    """Copy a metric without its points, and return the list for those."""
    target.name, target.unit, target.description = metric.name, metric.unit, metric.description
    target.metadata.extend(metric.metadata)
    kind = metric.WhichOneof("data")
    old, new = getattr(metric, kind), getattr(target, kind)
    for field, value in old.ListFields():
        if field.name != "data_points":
            setattr(new, field.name, value)
    new.SetInParent()
    return new.data_points
