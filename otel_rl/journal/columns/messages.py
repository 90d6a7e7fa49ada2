"""Attributes, resources, histograms and log records: messages that are decoded one by one, since they are few."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue, KeyValueList
from opentelemetry.proto.metrics.v1.metrics_pb2 import ExponentialHistogramDataPoint, HistogramDataPoint
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_rl.journal.views import LinkView, LogView, PointView
from otel_rl.records import Attributes, Value

if TYPE_CHECKING:
    from otel_rl.journal.files import Journal

LINKED: Final = re.compile(rb"\x6a.{1,3}\x0a\x10.{16}\x12\x08", re.DOTALL)
"""What a link of a span begins with: its field, its length, and the ids of 16 and 8 bytes."""
_PLAIN: Final = frozenset({"string_value", "int_value", "double_value", "bool_value"})


def decode(attributes: Iterable[KeyValue]) -> dict[str, Value]:
    """Decode attributes; values of a type that records do not have are left out."""
    values = ((item.key, _value(item.value)) for item in attributes)
    return {key: value for key, value in values if value is not None}


def logs(payload: bytes, journal: Journal, events: Collection[str] | None = None) -> Iterator[LogView]:
    """Decode the log records of a request, all or those of some events; one without these is passed over unread.

    Raises:
        DecodeError: it is no request of logs.
    """
    if events is not None and not any(name.encode() in payload for name in events):
        return
    for group in ExportLogsServiceRequest.FromString(payload).resource_logs:
        resource = journal.resource(group.resource.SerializeToString())
        for scope in group.scope_logs:
            for log in scope.log_records:
                if events is None or log.event_name in events:
                    yield LogView(
                        log.event_name, log.time_unix_nano, log.body.string_value, log.severity_number, log.trace_id,
                        log.span_id, decode(log.attributes), resource, journal,
                    )  # fmt: skip


def span_links(payload: bytes, journal: Journal) -> Iterator[LinkView]:
    """Decode the links of the spans of a request; one without any is passed over unread.

    Raises:
        DecodeError: it is no request of spans.
    """
    if not LINKED.search(payload):
        return
    for group in ExportTraceServiceRequest.FromString(payload).resource_spans:
        resource = journal.resource(group.resource.SerializeToString())
        for span in (one for scope in group.scope_spans for one in scope.spans):
            for link in span.links:
                yield LinkView(
                    span.trace_id, span.span_id, link.trace_id, link.span_id, decode(link.attributes), resource
                )


def resource_of(message: bytes) -> Attributes:
    """Return the attributes of a Resource."""
    return MappingProxyType(decode(Resource.FromString(message).attributes))


@lru_cache(maxsize=4096)  # the points of a stream all have the same
def attributes_of(message: bytes) -> Attributes:
    """Return the attributes of a KeyValueList."""
    return MappingProxyType(decode(KeyValueList.FromString(message).values))


def list_of(message: bytes) -> Value | None:
    """Return the value of an AnyValue that is an array."""
    return _value(AnyValue.FromString(message))


def fill_histogram(view: PointView, message: bytes, *, is_exponential: bool) -> None:
    """Set what a data point of a histogram has counted.

    Raises:
        DecodeError: it is no such data point.
    """
    point = (ExponentialHistogramDataPoint if is_exponential else HistogramDataPoint).FromString(message)
    view.count, view.sum, view.min, view.max = point.count, point.sum, point.min, point.max
    if isinstance(point, ExponentialHistogramDataPoint):
        view.boundaries, view.counts = _exponential(point)
    else:
        view.boundaries, view.counts = tuple(point.explicit_bounds), tuple(point.bucket_counts)


def _value(message: AnyValue) -> Value | None:
    kind = message.WhichOneof("value")
    if kind in _PLAIN:
        value: Value = getattr(message, kind)
        return value
    if kind == "array_value":
        return tuple(value for value in map(_value, message.array_value.values) if value is not None)
    return None


def _exponential(point: ExponentialHistogramDataPoint) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Return boundaries and counts; the first bucket has negative values and zeros."""
    first, counts = point.positive.offset, tuple(point.positive.bucket_counts)
    bounds = _bounds(point.scale, first, len(counts)) if counts else ()
    least = point.zero_count + sum(point.negative.bucket_counts)
    if bounds[:1] == (point.zero_threshold,):
        return bounds, (least, *counts, 0)
    return (point.zero_threshold, *bounds), (least, *((0, *counts) if counts else ()), 0)


@lru_cache(maxsize=256)  # the points of a stream mostly have those of the point before
def _bounds(scale: int, first: int, count: int) -> tuple[float, ...]:
    return tuple(_power(scale, step) for step in range(first, first + count + 1))


def _power(scale: int, step: int) -> float:
    try:
        return math.pow(2.0, step * math.pow(2.0, -scale))
    except OverflowError:
        return math.inf
