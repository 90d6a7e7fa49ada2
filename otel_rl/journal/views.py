"""Spans, points and log records of a journal as plain values, decoded as far as a reader asks."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    ExponentialHistogramDataPoint,
    HistogramDataPoint,
    NumberDataPoint,
)

from otel_rl import vocabulary
from otel_rl.records import Attributes, Value

if TYPE_CHECKING:
    from otel_rl.journal.files import Journal

_PLAIN: Final = frozenset({"string_value", "int_value", "double_value", "bool_value"})
_EMPTY: Final[Attributes] = MappingProxyType({})
Kind = Literal["gauge", "counter", "histogram"]
Wanted = str | Callable[[str], bool] | None
"""The metrics whose points are decoded: one name, a function of the name, or all."""
KINDS: Final[dict[str, Kind]] = {
    "gauge": "gauge",
    "sum": "counter",
    "histogram": "histogram",
    "exponential_histogram": "histogram",
}


class SpanView(NamedTuple):
    """A finished span, or one that a reader closed, then with ``rl.truncated``.

    It is a tuple since a run has millions of spans, and a frozen dataclass takes three times as long to make.
    """

    name: str
    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    start_ns: int
    end_ns: int
    status_code: int
    """0 unset, 1 ok, 2 error."""
    attributes: Attributes
    resource: Attributes
    journal: Journal
    is_own: bool = True


@dataclass(slots=True)
class PointView:
    """One point of a metric: a gauge or counter has ``value``, a histogram the fields after it.

    An exponential histogram has boundaries, too: the values in bucket i are above boundary i-1, and at most boundary i.
    It is not frozen since a run has millions of points, and a frozen one takes four times as long to make.
    """

    name: str
    kind: Kind
    unit: str
    time_ns: int
    start_ns: int
    """The time when counting began; 0 for a gauge."""
    attributes: Attributes
    resource: Attributes
    journal: Journal
    value: float = 0.0
    count: int = 0
    sum: float = 0.0
    min: float = 0.0
    max: float = 0.0
    boundaries: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LogView:
    """A log record."""

    event_name: str
    time_ns: int
    body: str
    severity: int
    trace_id: bytes
    span_id: bytes
    attributes: Attributes
    resource: Attributes
    journal: Journal


@dataclass(frozen=True, slots=True)
class OpenView:
    """A stage that its process began and that has no end in the journal."""

    name: str
    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    start_ns: int
    attributes: Attributes
    resource: Attributes
    journal: Journal
    alive: bool
    """Whether the process lives, so that the stage goes on or hangs; else the process died in it."""
    named_ns: int = 0
    """If the process's clock was set: the time of the last record that names its step. Other times may be older."""

    @property
    def last_ns(self) -> int:
        """The last sign of life of its process, ns since 1970."""
        return self.named_ns or self.journal.last_ns

    def closed(self, keys: Collection[str] | None = None) -> SpanView:
        """Make a span of it that ends at its process's last sign of life, with ``rl.truncated`` among its attributes.

        Args:
            keys: attributes to keep; None for all.
        """
        kept = {key: value for key, value in self.attributes.items() if keys is None or key in keys}
        kept.pop(vocabulary.STAGE, None)  # it is the name once more
        end_ns = max(self.start_ns, self.last_ns)
        return SpanView(
            self.name, self.trace_id, self.span_id, self.parent_id, self.start_ns, end_ns, 0,
            {**kept, vocabulary.TRUNCATED: True}, self.resource, self.journal,
        )  # fmt: skip


def spans(payload: bytes, journal: Journal, keys: Collection[str] | None) -> Iterator[SpanView]:
    """Decode the spans of a request, with the attributes that ``keys`` name; None is all."""
    for group in ExportTraceServiceRequest.FromString(payload).resource_spans:
        resource = journal.resource(group.resource)
        for scope in group.scope_spans:
            own = scope.scope.name == vocabulary.SCOPE
            for span in scope.spans:
                attributes = _EMPTY if keys is not None and not keys else decode(span.attributes, keys)
                yield SpanView(
                    span.name, span.trace_id, span.span_id, span.parent_span_id, span.start_time_unix_nano,
                    span.end_time_unix_nano, span.status.code, attributes, resource, journal, own,
                )  # fmt: skip


def span_ids(payload: bytes) -> Iterator[bytes]:
    for group in ExportTraceServiceRequest.FromString(payload).resource_spans:
        for scope in group.scope_spans:
            for span in scope.spans:
                yield span.span_id


def points(payload: bytes, journal: Journal, wanted: Wanted) -> Iterator[PointView]:
    is_wanted = wanted if callable(wanted) else lambda name: wanted in (None, name)
    for group in ExportMetricsServiceRequest.FromString(payload).resource_metrics:
        resource = journal.resource(group.resource)
        for scope in group.scope_metrics:
            for metric in scope.metrics:
                field = metric.WhichOneof("data")
                if field not in KINDS or not is_wanted(metric.name):
                    continue
                head = (metric.name, KINDS[field], metric.unit)
                for point in getattr(metric, field).data_points:
                    yield _point(head, point, resource, journal)


def logs(payload: bytes, journal: Journal, event_name: str | None) -> Iterator[LogView]:
    for group in ExportLogsServiceRequest.FromString(payload).resource_logs:
        resource = journal.resource(group.resource)
        for scope in group.scope_logs:
            for log in scope.log_records:
                if event_name is None or log.event_name == event_name:
                    yield LogView(
                        log.event_name, log.time_unix_nano, log.body.string_value, log.severity_number, log.trace_id,
                        log.span_id, decode(log.attributes, None), resource, journal,
                    )  # fmt: skip


def decode(attributes: Iterable[KeyValue], keys: Collection[str] | None) -> dict[str, Value]:
    """Decode attributes; values of a type that records do not have are left out."""
    found = {}
    for item in attributes:
        key = item.key
        if keys is None or key in keys:
            value = _value(item.value)
            if value is not None:
                found[key] = value
                if keys is not None and len(found) == len(keys):
                    break
    return found


def _value(message: AnyValue) -> Value | None:
    kind = message.WhichOneof("value")
    if kind in _PLAIN:
        value: Value = getattr(message, kind)
        return value
    if kind == "array_value":
        return tuple(value for value in map(_value, message.array_value.values) if value is not None)
    return None


def _point(
    metric: tuple[str, Kind, str],
    point: NumberDataPoint | HistogramDataPoint | ExponentialHistogramDataPoint,
    resource: Attributes,
    journal: Journal,
) -> PointView:
    name, kind, unit = metric
    time_ns, start_ns = point.time_unix_nano, point.start_time_unix_nano
    view = PointView(name, kind, unit, time_ns, start_ns, decode(point.attributes, None), resource, journal)
    if isinstance(point, NumberDataPoint):
        view.value = point.as_int if point.WhichOneof("value") == "as_int" else point.as_double
        return view
    view.count, view.sum, view.min, view.max = point.count, point.sum, point.min, point.max
    if isinstance(point, ExponentialHistogramDataPoint):
        view.boundaries, view.counts = _exponential(point)
    else:
        view.boundaries, view.counts = tuple(point.explicit_bounds), tuple(point.bucket_counts)
    return view


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
