"""Encoding metric points."""

from __future__ import annotations

from typing import Any, Final

from opentelemetry.proto.metrics.v1 import metrics_pb2 as proto

from otel_rl.analysis.buckets import BOUNDS, layout
from otel_rl.journal.otlp.clean import INT64_MAX, INT64_MIN, UNENCODABLE, Cleaner
from otel_rl.journal.otlp.wire import OtlpBatch, record
from otel_rl.records import Distribution, Exemplar, MetricPoints, Number, Point, Value

MAX_KEPT: Final = 4096
FIELDS: Final = {"gauge": "gauge", "counter": "sum", "histogram": "histogram", "exponential": "exponential_histogram"}
"""The field of ``Metric`` that has the points."""


class MetricEncoder:
    """Encodes the points of metrics; keeps the messages of attribute sets, which repeat."""

    def __init__(self, cleaner: Cleaner) -> None:
        self._cleaner = cleaner
        self._kept: dict[tuple[tuple[str, Value], ...], list[Any]] = {}

    def encode(self, metric: MetricPoints, batch: OtlpBatch) -> int:
        """Add the points of a metric to a batch, in several messages if they are too large for one request.

        Returns:
            The number of points that could not be encoded.
        """
        message, points = self._message(metric)
        failed = 0
        for point in metric.points:
            before = len(points)
            try:
                points.add(**self._fields(metric, point))
            except UNENCODABLE:
                del points[before:]
                failed += 1
        if points:
            self._add(metric, message, points, batch)
        return failed

    def _message(self, metric: MetricPoints) -> tuple[Any, Any]:
        clean = self._cleaner.name
        message = proto.Metric(name=clean(metric.name), unit=clean(metric.unit), description=clean(metric.description))
        data = getattr(message, FIELDS[metric.kind])
        if metric.kind != "gauge":
            data.aggregation_temporality = proto.AGGREGATION_TEMPORALITY_CUMULATIVE
        if metric.kind == "counter":
            data.is_monotonic = True
        return message, data.data_points

    def _add(self, metric: MetricPoints, message: Any, points: Any, batch: OtlpBatch) -> None:
        data = record(message.SerializeToString())
        if len(data) <= batch.room or len(points) == 1:
            times = [point.time_unix_nano for point in points]
            batch.add((data, min(times), max(times), len(points)))
            return
        half = len(points) // 2
        for some in (points[:half], points[half:]):
            part, points_of_part = self._message(metric)
            points_of_part.extend(some)
            self._add(metric, part, points_of_part, batch)

    def _fields(self, metric: MetricPoints, point: Number | Distribution | Point) -> dict[str, Any]:
        items = point.labels if isinstance(point, Point) else tuple(point.attributes.items())
        fields: dict[str, Any] = {"time_unix_nano": self._cleaner.time(point.time_ns)}
        if items:
            fields["attributes"] = self._attributes(items)
        if metric.kind != "gauge":
            fields["start_time_unix_nano"] = self._cleaner.time(metric.start_ns)
        if isinstance(point, Distribution):
            make = _exponential if metric.kind == "exponential" else _distribution
            return fields | make(point, metric)
        value = point.value
        is_int = isinstance(value, int) and INT64_MIN <= value <= INT64_MAX
        fields["as_int" if is_int else "as_double"] = value  # an integer beyond 64 bits becomes a float
        return fields

    def _attributes(self, items: tuple[tuple[str, Value], ...]) -> list[Any]:
        """Return the attributes of a point; they are kept if all are strings, since 1 equals True."""
        is_kept = all(type(value) is str for _, value in items)
        found = self._kept.get(items) if is_kept else None
        if found is None:
            message = proto.NumberDataPoint()
            self._cleaner.fill(message.attributes, dict(items))
            found = list(message.attributes)
            if is_kept:
                if len(self._kept) >= MAX_KEPT:
                    self._kept.clear()
                self._kept[items] = found
        return found


def _distribution(point: Distribution, metric: MetricPoints) -> dict[str, Any]:
    counts, bounds = point.counts, metric.boundaries
    if len(counts) != len(bounds) + 1:
        raise ValueError("a histogram has one count more than boundaries")
    return _summary(point, sum(counts)) | {"bucket_counts": counts, "explicit_bounds": bounds}


def _exponential(point: Distribution, metric: MetricPoints) -> dict[str, Any]:
    if len(point.counts) != len(BOUNDS) + 1:
        raise ValueError("an exponential histogram has one count more than there are bounds")
    scale, offset, counts = layout(point.counts, point.min, point.max)
    fields = _summary(point, point.counts[0] + sum(counts))
    if fields["count"]:
        fields |= {"scale": scale, "zero_count": point.counts[0], "zero_threshold": BOUNDS[0]}
    if counts:
        fields["positive"] = proto.ExponentialHistogramDataPoint.Buckets(offset=offset, bucket_counts=counts)
    return fields


def _summary(point: Distribution, count: int) -> dict[str, Any]:
    """Return what both kinds of histograms say; one without values has no least and no greatest."""
    fields: dict[str, Any] = {"count": count, "sum": point.sum}
    if count:
        fields |= {"min": point.min, "max": point.max, "exemplars": [_exemplar(one) for one in point.exemplars]}
    return fields


def _exemplar(exemplar: Exemplar) -> proto.Exemplar:
    return proto.Exemplar(
        time_unix_nano=exemplar.time_ns,
        as_double=exemplar.value,
        span_id=exemplar.span_id.to_bytes(8, "big"),
        trace_id=exemplar.trace_id.to_bytes(16, "big"),
    )
