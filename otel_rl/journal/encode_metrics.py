"""Encoding metric points. A point is a few numbers of fixed width, so it is packed by hand instead of by protobuf."""

from __future__ import annotations

import struct
from typing import Final

from opentelemetry.proto.metrics.v1.metrics_pb2 import HistogramDataPoint, Metric, NumberDataPoint

from otel_rl.journal.clean import INT64_MAX, INT64_MIN, UNENCODABLE, Cleaner
from otel_rl.journal.wire import Batch, block
from otel_rl.records import Attributes, Distribution, MetricPoints, Number

MAX_KEPT: Final = 4096
"""Attribute sets and metrics whose encoding is kept."""

_CUMULATIVE: Final = b"\x10\x02"
_MONOTONIC: Final = b"\x18\x01"
_KINDS: Final = {"gauge": (5, b""), "counter": (7, _CUMULATIVE + _MONOTONIC), "histogram": (9, _CUMULATIVE)}
"""Field of ``Metric`` that holds the points, and what stands behind them."""
_TIME: Final = struct.Struct("<BQ")  # here and below: the tag of a field, then its number
_DOUBLE: Final = struct.Struct("<Bd")
_INT: Final = struct.Struct("<Bq")
_TIME_DOUBLE: Final = struct.Struct("<BQBd")
_COUNT_SUM: Final = struct.Struct("<BQBd")
_MIN_MAX: Final = struct.Struct("<BdBd")


class MetricEncoder:
    """Encodes the points of metrics; keeps the encoding of names and attribute sets, which repeat."""

    def __init__(self, cleaner: Cleaner) -> None:
        """Begin with nothing kept."""
        self._cleaner = cleaner
        self._kept: dict[tuple[object, ...], bytes] = {}
        self._same: dict[int, tuple[Attributes, type[HistogramDataPoint | NumberDataPoint], bytes]] = {}
        """By identity; the mapping itself is kept, so that its id stays its own."""

    def encode(self, metric: MetricPoints, batch: Batch) -> int:
        """Add the points of a metric to a batch, in several messages where they are too large for one request.

        Returns:
            How many points could not be encoded.
        """
        head = self._head(metric)
        room = batch.room - len(head) - 32
        points: list[bytes] = []
        times: list[int] = []
        size = failed = 0
        for point in metric.points:
            try:
                time_ns = self._cleaner.time(point.time_ns)
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

    def _point(self, metric: MetricPoints, point: Number | Distribution, time_ns: int) -> bytes:
        kind = HistogramDataPoint if isinstance(point, Distribution) else NumberDataPoint
        attributes = self._attributes(point.attributes, kind) if point.attributes else b""
        if metric.kind == "gauge" and type(point) is Number and type(point.value) is float:
            return block(1, _TIME_DOUBLE.pack(0x19, time_ns, 0x21, point.value) + attributes)
        times = _TIME.pack(0x19, time_ns)
        if metric.kind != "gauge":
            times = _TIME.pack(0x11, self._cleaner.time(metric.start_ns)) + times
        if isinstance(point, Distribution):
            return block(1, times + _distribution(point, metric) + attributes)
        return block(1, times + _number(point.value) + attributes)

    def _attributes(self, attributes: Attributes, kind: type[HistogramDataPoint | NumberDataPoint]) -> bytes:
        """Encode the attributes of a point; kept where all are strings, since 1 equals True but no string does.

        The fold gives the same mapping for every point of a series, so that is looked for first.
        """
        same = self._same.get(id(attributes))
        if same is not None and same[0] is attributes and same[1] is kind:
            return same[2]
        if not all(type(value) is str for value in attributes.values()):
            return self._fill(attributes, kind)
        key = (kind, *attributes.items())
        kept = self._kept.get(key)
        if kept is None:
            kept = self._keep(key, self._fill(attributes, kind))
        if len(self._same) >= MAX_KEPT:
            self._same.clear()
        self._same[id(attributes)] = (attributes, kind, kept)
        return kept

    def _fill(self, attributes: Attributes, kind: type[HistogramDataPoint | NumberDataPoint]) -> bytes:
        message = kind()
        self._cleaner.fill(message.attributes, attributes)
        data: bytes = message.SerializeToString()
        return data

    def _keep(self, key: tuple[object, ...], data: bytes) -> bytes:
        if len(self._kept) >= MAX_KEPT:
            self._kept.clear()
        self._kept[key] = data
        return data


def _add(metric: MetricPoints, head: bytes, points: list[bytes], times: list[int], batch: Batch) -> None:
    field, tail = _KINDS[metric.kind]
    batch.add(head + block(field, b"".join(points) + tail), min(times), max(times), len(points))


def _number(value: float) -> bytes:
    """Encode the value of a number's point; an integer beyond 64 bits becomes a float."""
    if isinstance(value, int) and INT64_MIN <= value <= INT64_MAX:
        return _INT.pack(0x31, value)
    return _DOUBLE.pack(0x21, value)


def _distribution(point: Distribution, metric: MetricPoints) -> bytes:
    """Encode the numbers of a histogram's point; without values it has no least and no greatest one."""
    counts, bounds = point.counts, metric.boundaries
    if len(counts) != len(bounds) + 1:
        raise ValueError("a histogram has one count more than boundaries")
    total = sum(counts)
    data = _COUNT_SUM.pack(0x21, total, 0x29, point.sum) + block(6, struct.pack(f"<{len(counts)}Q", *counts))
    if bounds:
        data += block(7, struct.pack(f"<{len(bounds)}d", *bounds))
    return data + _MIN_MAX.pack(0x59, point.min, 0x61, point.max) if total else data
