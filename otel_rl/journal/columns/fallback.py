"""What ``_decode.c`` does, in Python and by protobuf. Cost: 20 us a span."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValueList
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, NumberDataPoint
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_rl import vocabulary

INT, DOUBLE, TEXT, BOOL, LIST = range(5)
GAUGE, SUM, HISTOGRAM, EXPONENTIAL = 5, 7, 9, 10
"""Kinds of metrics: the fields of a Metric."""
DATA: Final = {"gauge": GAUGE, "sum": SUM, "histogram": HISTOGRAM, "exponential_histogram": EXPONENTIAL}
AS_DOUBLE, AS_INT = 4, 6
"""What a number is, else 0: the fields of a NumberDataPoint."""
OTHERS, KEYS = 1, 2
"""The places of columns: rows, other attributes, then one for each known key."""

_SPAN: Final = struct.Struct("<16s8s8s2Q3Ii2I")
_POINT: Final = struct.Struct("<2Q8s8I")
_OTHER: Final = struct.Struct("<3I8s")
_CELL: Final = struct.Struct("<I8s")
_ID_BYTES: Final = 8

Table = tuple[bytes, bytes]
"""Texts, or messages, in a row, and where each ends (u32)."""


class Decoded(NamedTuple):
    """What several requests hold."""

    made: bytes
    """The rows of each request, or -1 where it cannot be read (i32)."""
    texts: Table
    blobs: Table
    """Messages that are kept as they are."""
    columns: tuple[bytes, ...]


class _Table(dict[bytes, int]):
    """Numbers of texts, in the order in which they came."""

    def __missing__(self, text: bytes) -> int:
        self[text] = code = len(self)
        return code

    def as_bytes(self) -> Table:
        ends, end = array("I"), 0
        for text in self:
            ends.append(end := end + len(text))
        return b"".join(self), ends.tobytes()


class _Decoder:
    """Collects rows and cells."""

    def __init__(self, keys: list[tuple[str, int]]) -> None:
        self.places = {key: (KEYS + number, type) for number, (key, type) in enumerate(keys)}
        self.texts, self.blobs = _Table(), _Table()
        self.columns = [bytearray() for _ in range(KEYS + len(keys))]
        self.rows = 0
        self.made = array("i")

    def put(self, put_request: Callable[[int, bytes], None], requests: list[bytes]) -> None:
        for number, request in enumerate(requests):
            rows, sizes = self.rows, [len(column) for column in self.columns]
            try:
                put_request(number, request)
            except (DecodeError, ValueError):
                self.rows = rows - 1
                for column, size in zip(self.columns, sizes, strict=True):
                    del column[size:]
            self.made.append(self.rows - rows)
            self.rows = max(self.rows, rows)

    def put_spans(self, number: int, request: bytes) -> None:
        for group in ExportTraceServiceRequest.FromString(request).resource_spans:
            resource = self.blobs[group.resource.SerializeToString()]
            for scope in group.scope_spans:
                is_own = scope.scope.name == vocabulary.SCOPE
                for span in scope.spans:
                    self._put_span(span, resource, number, is_own=is_own)

    def _put_span(self, span: Span, resource: int, request: int, *, is_own: bool) -> None:
        for item in span.attributes:
            self._put_attribute(item.key, item.value)
        self.columns[0] += _SPAN.pack(
            _id(span.trace_id, 2 * _ID_BYTES),
            _id(span.span_id, _ID_BYTES),
            _id(span.parent_span_id, _ID_BYTES),
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            self.texts[span.name.encode()],
            resource,
            request,
            span.status.code,
            is_own,
            0,
        )
        self.rows += 1

    def _put_attribute(self, key: str, value: AnyValue) -> None:
        type, cell = self._cell(value)
        place, wanted = self.places.get(key, (OTHERS, None))
        if wanted == DOUBLE and type == INT:
            type, cell = DOUBLE, struct.pack("<d", value.int_value)
        if type is None:
            return
        if type == wanted:
            self.columns[place] += _CELL.pack(self.rows, cell)
        else:
            self.columns[OTHERS] += _OTHER.pack(self.rows, self.texts[key.encode()], type, cell)

    def _cell(self, value: AnyValue) -> tuple[int | None, bytes]:
        match value.WhichOneof("value"):
            case "string_value":
                return TEXT, struct.pack("<Q", self.texts[value.string_value.encode()])
            case "int_value":
                return INT, struct.pack("<q", value.int_value)
            case "double_value":
                return DOUBLE, struct.pack("<d", value.double_value)
            case "bool_value":
                return BOOL, struct.pack("<Q", value.bool_value)
            case "array_value":
                return LIST, struct.pack("<Q", self.blobs[value.SerializeToString()])
        return None, b""

    def put_points(self, number: int, request: bytes) -> None:
        for group in ExportMetricsServiceRequest.FromString(request).resource_metrics:
            resource = self.blobs[group.resource.SerializeToString()]
            for scope in group.scope_metrics:
                for metric in scope.metrics:
                    self._put_metric(metric, resource, number)

    def _put_metric(self, metric: Metric, resource: int, request: int) -> None:
        data = metric.WhichOneof("data")
        if data not in DATA:
            return
        name, unit, kind = self.texts[metric.name.encode()], self.texts[metric.unit.encode()], DATA[data]
        for point in getattr(metric, data).data_points:
            attributes = self.blobs[KeyValueList(values=point.attributes).SerializeToString()]
            number, value, body = 0, bytes(8), 0
            if kind in (GAUGE, SUM):
                number, value = _number(point)
            else:
                body = self.blobs[point.SerializeToString()]
            times = point.time_unix_nano, point.start_time_unix_nano
            self.columns[0] += _POINT.pack(*times, value, name, unit, resource, attributes, body, request, kind, number)
            self.rows += 1

    def decoded(self) -> Decoded:
        columns = tuple(bytes(column) for column in self.columns)
        return Decoded(self.made.tobytes(), self.texts.as_bytes(), self.blobs.as_bytes(), columns)


def spans(requests: list[bytes], keys: list[tuple[str, int]]) -> Decoded:
    """Read the spans of requests.

    Args:
        requests: ExportTraceServiceRequests.
        keys: the attributes that get columns of their own, with their types (``INT``, ``DOUBLE``, ...).
    """
    decoder = _Decoder(keys)
    decoder.put(decoder.put_spans, requests)
    return decoder.decoded()


def points(requests: list[bytes]) -> Decoded:
    """Read the points of ExportMetricsServiceRequests."""
    decoder = _Decoder([])
    decoder.put(decoder.put_points, requests)
    return decoder.decoded()._replace(columns=(bytes(decoder.columns[0]),))


def _number(point: NumberDataPoint) -> tuple[int, bytes]:
    if point.WhichOneof("value") == "as_int":
        return AS_INT, struct.pack("<q", point.as_int)
    return AS_DOUBLE if point.HasField("as_double") else 0, struct.pack("<d", point.as_double)


def _id(given: bytes, size: int) -> bytes:
    if len(given) not in (0, size):
        raise ValueError(f"an id has {size} bytes")
    return given.ljust(size, b"\0")
