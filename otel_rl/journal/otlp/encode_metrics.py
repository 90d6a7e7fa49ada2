"""Encoding metric points, by hand: a point is a few numbers of fixed width, and protobuf would take longer."""

from __future__ import annotations

import struct
from typing import Final

from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    ExponentialHistogramDataPoint,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
)

from otel_rl.analysis.buckets import BOUNDS, layout
from otel_rl.journal.otlp.clean import INT64_MAX, INT64_MIN, UNENCODABLE, Cleaner
from otel_rl.journal.otlp.wire import OtlpBatch, block, record
from otel_rl.records import Attributes, Distribution, Exemplar, Labels, MetricPoints, Number, Point

_Point = type[HistogramDataPoint | ExponentialHistogramDataPoint | NumberDataPoint]
MAX_KEPT: Final = 4096

_CUMULATIVE: Final = b"\x10\x02"
_MONOTONIC: Final = b"\x18\x01"
_KINDS: Final = {
    "gauge": (5, b""),
    "counter": (7, _CUMULATIVE + _MONOTONIC),
    "histogram": (9, _CUMULATIVE),
    "exponential": (10, _CUMULATIVE),
}
"""The field of ``Metric`` that has the points, and the bytes after them."""
_TIME: Final = struct.Struct("<BQ")  # here and below: the tag of a field, then its number
_DOUBLE: Final = struct.Struct("<Bd")
_INT: Final = struct.Struct("<Bq")
_U64_DOUBLE: Final = struct.Struct("<BQBd")
_MIN_MAX: Final = struct.Struct("<BdBd")
_SCALE_ZERO: Final = struct.Struct("<BBBQBd")
_MESSAGES: Final[dict[str, _Point]] = {"histogram": HistogramDataPoint, "exponential": ExponentialHistogramDataPoint}
"""Points whose attributes have another tag than those of a number."""


class MetricEncoder:
    """Encodes the points of metrics; keeps the encoding of names and attribute sets, which repeat."""

    def __init__(self, cleaner: Cleaner) -> None:
        self._cleaner = cleaner
        self._kept: dict[tuple[object, ...], bytes] = {}
        self._gauges: dict[Labels, tuple[bytes, bytes]] = {}
        """The bytes before and after the numbers of a gauge's point."""

    def encode(self, metric: MetricPoints, batch: OtlpBatch) -> int:
        """Add the points of a metric to a batch, in several messages if they are too large for one request.

        Returns:
            The number of points that could not be encoded.
        """
        head = self._head(metric)
        room = batch.room - len(head) - 32
        points: list[bytes] = []
        times: list[int] = []
        size = failed = 0
        gauges, clean_time, pack = self._gauges, self._cleaner.time, _U64_DOUBLE.pack
        for point in metric.points:
            try:
                time_ns = clean_time(point.time_ns)
                if type(point) is Point:
                    before, after = gauges.get(point.labels) or self._gauge(point.labels)
                    value = point.value
                    if type(value) is float:
                        data = before + pack(0x19, time_ns, 0x21, value) + after
                    else:
                        data = before + _TIME.pack(0x19, time_ns) + _number(value) + after
                else:
                    data = self._point(metric, point, time_ns)
            except (*UNENCODABLE, struct.error):
                failed += 1
                continue
            if points and size + len(data) > room:
                _add(metric, head, points, times, batch)
                points, times, size = [], [], 0
            points.append(data)
            times.append(time_ns)
            size += len(data)
        if points:
            _add(metric, head, points, times, batch)
        return failed

    def _head(self, metric: MetricPoints) -> bytes:
        key = (metric.name, metric.unit, metric.description)
        head = self._kept.get(key)
        if head is None:
            clean = self._cleaner.name
            message = Metric(name=clean(metric.name), unit=clean(metric.unit), description=clean(metric.description))
            head = self._keep(key, message.SerializeToString())
        return head

    def _gauge(self, labels: Labels) -> tuple[bytes, bytes]:
        """Encode what is before and after the numbers of a gauge's point, which all have one size."""
        attributes = self._attributes(dict(labels), NumberDataPoint) if labels else b""
        gauge = block(1, bytes(_U64_DOUBLE.size) + attributes)[: -_U64_DOUBLE.size - len(attributes)], attributes
        if all(type(value) is str for _, value in labels):
            if len(self._gauges) >= MAX_KEPT:
                self._gauges.clear()
            self._gauges[labels] = gauge
        return gauge

    def _point(self, metric: MetricPoints, point: Number | Distribution | Point, time_ns: int) -> bytes:
        kind = _MESSAGES.get(metric.kind, NumberDataPoint)
        attributes = self._attributes(point.attributes, kind) if point.attributes else b""
        times = _TIME.pack(0x19, time_ns)
        if metric.kind != "gauge":
            times = _TIME.pack(0x11, self._cleaner.time(metric.start_ns)) + times
        if isinstance(point, Distribution):
            numbers = _exponential(point) if metric.kind == "exponential" else _distribution(point, metric)
            return block(1, times + numbers + attributes)
        return block(1, times + _number(point.value) + attributes)

    def _attributes(self, attributes: Attributes, kind: _Point) -> bytes:
        """Encode the attributes of a point; they are kept if all are strings, since 1 equals True."""
        if not all(type(value) is str for value in attributes.values()):
            return self._fill(attributes, kind)
        key = (kind, *attributes.items())
        kept = self._kept.get(key)
        return self._keep(key, self._fill(attributes, kind)) if kept is None else kept

    def _fill(self, attributes: Attributes, kind: _Point) -> bytes:
        message = kind()
        self._cleaner.fill(message.attributes, attributes, is_limited=False)
        data: bytes = message.SerializeToString()
        return data

    def _keep(self, key: tuple[object, ...], data: bytes) -> bytes:
        if len(self._kept) >= MAX_KEPT:
            self._kept.clear()
        self._kept[key] = data
        return data


def _add(metric: MetricPoints, head: bytes, points: list[bytes], times: list[int], batch: OtlpBatch) -> None:
    field, tail = _KINDS[metric.kind]
    data = record(head + block(field, b"".join(points) + tail))
    batch.add((data, min(times), max(times), len(points)))


def _number(value: float) -> bytes:
    """Encode a value; an integer beyond 64 bits becomes a float."""
    if isinstance(value, int) and INT64_MIN <= value <= INT64_MAX:
        return _INT.pack(0x31, value)
    return _DOUBLE.pack(0x21, value)


def _distribution(point: Distribution, metric: MetricPoints) -> bytes:
    counts, bounds = point.counts, metric.boundaries
    if len(counts) != len(bounds) + 1:
        raise ValueError("a histogram must have one count more than boundaries")
    total = sum(counts)
    data = _U64_DOUBLE.pack(0x21, total, 0x29, point.sum) + block(6, struct.pack(f"<{len(counts)}Q", *counts))
    if bounds:
        data += block(7, struct.pack(f"<{len(bounds)}d", *bounds))
    data += b"".join(block(8, _exemplar(one)) for one in point.exemplars)
    return data + _MIN_MAX.pack(0x59, point.min, 0x61, point.max) if total else data


def _exponential(point: Distribution) -> bytes:
    if len(point.counts) != len(BOUNDS) + 1:
        raise ValueError("an exponential histogram must have one count more than bounds")
    scale, offset, counts = layout(point.counts, point.min, point.max)
    total = point.counts[0] + sum(counts)
    data = _U64_DOUBLE.pack(0x21, total, 0x29, point.sum)
    if not total:
        return data
    data += _SCALE_ZERO.pack(0x30, 2 * scale, 0x39, point.counts[0], 0x71, BOUNDS[0])
    if counts:
        buckets = ExponentialHistogramDataPoint.Buckets(offset=offset, bucket_counts=counts)
        data += block(8, buckets.SerializeToString())
    data += b"".join(block(11, _exemplar(one)) for one in point.exemplars)
    return data + _MIN_MAX.pack(0x61, point.min, 0x69, point.max)


def _exemplar(exemplar: Exemplar) -> bytes:
    ids = block(4, exemplar.span_id.to_bytes(8, "big")) + block(5, exemplar.trace_id.to_bytes(16, "big"))
    return _U64_DOUBLE.pack(0x11, exemplar.time_ns, 0x19, exemplar.value) + ids
