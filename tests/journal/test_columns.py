"""Requests as columns: what protobuf reads in them, in C and in Python, also in requests that something has damaged."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.metrics.v1 import metrics_pb2 as metrics
from opentelemetry.proto.trace.v1 import trace_pb2 as trace

from otel_rl import vocabulary as v
from otel_rl.journal.columns import decode, fallback
from otel_rl.journal.columns.decode import KEYS, TYPES, decode_points, decode_spans
from otel_rl.journal.files import Journal
from otel_rl.journal.frame import TYPES as FRAME_TYPES
from otel_rl.journal.frame import pack
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.read import open_run

JOURNAL = Journal(WriterIdentity("w"), [])
DOUBLES = {key for key, type in KEYS if type == TYPES["double"]}
MOST = (1 << 63) - 1
Plain = tuple[Any, ...]
needs_c = pytest.mark.skipif(decode.native is None, reason="no compiler where otel_rl was installed")


# --- by protobuf ------------------------------------------------------------------------------------------------------


def value_of(value: AnyValue) -> Any:
    """Return a value of a type that records have, else None."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return tuple(one for one in map(value_of, value.array_value.values) if one is not None)
    return getattr(value, kind) if kind in ("string_value", "int_value", "double_value", "bool_value") else None


def plain(attributes: Any) -> dict[str, Any]:
    return {one.key: value_of(one.value) for one in attributes if value_of(one.value) is not None}


def attributes_of(span: trace.Span) -> dict[str, Any]:
    """A whole number in a column of numbers with a point is one, too."""
    read = plain(span.attributes)
    return {key: float(one) if key in DOUBLES and type(one) is int else one for key, one in read.items()}


def spans_by_protobuf(request: ExportTraceServiceRequest) -> list[Plain]:
    return [
        (span.name, span.trace_id, span.span_id, span.parent_span_id, span.start_time_unix_nano,
         span.end_time_unix_nano, span.status.code, attributes_of(span), plain(group.resource.attributes),
         scope.scope.name == "otel_rl")
        for group in request.resource_spans for scope in group.scope_spans for span in scope.spans
    ]  # fmt: skip


def points_by_protobuf(request: ExportMetricsServiceRequest) -> list[Plain]:
    kinds = {"gauge": "gauge", "sum": "counter", "histogram": "histogram", "exponential_histogram": "histogram"}
    return [
        (metric.name, kinds[data], metric.unit, point.time_unix_nano, point.start_time_unix_nano,
         plain(point.attributes), plain(group.resource.attributes), *counted(data, point))
        for group in request.resource_metrics for scope in group.scope_metrics for metric in scope.metrics
        if (data := metric.WhichOneof("data")) in kinds
        for point in getattr(metric, data).data_points
    ]  # fmt: skip


def counted(data: str, point: Any) -> Plain:
    """Return value, count, sum, least, largest, and what is in all buckets (test_buckets.py says in which)."""
    if data in ("gauge", "sum"):
        return point.as_int if point.WhichOneof("value") == "as_int" else point.as_double, 0, 0.0, 0.0, 0.0, 0
    if data == "histogram":
        inside = sum(point.bucket_counts)
    else:
        inside = sum((*point.positive.bucket_counts, *point.negative.bucket_counts, point.zero_count))
    return 0.0, point.count, point.sum, point.min, point.max, inside


# --- by columns -------------------------------------------------------------------------------------------------------


def read_spans(*requests: bytes) -> list[Plain]:
    views = decode_spans(list(requests)).views(JOURNAL)
    return [(*view[:7], dict(view.attributes), dict(view.resource), view.is_own) for view in views]


def read_points(*requests: bytes) -> list[Plain]:
    return [
        (one.name, one.kind, one.unit, one.time_ns, one.start_ns, dict(one.attributes), dict(one.resource), one.value,
         one.count, one.sum, one.min, one.max, sum(one.counts))
        for one in decode_points(list(requests)).views(JOURNAL)
    ]  # fmt: skip


def by_python() -> Any:
    return patch.object(decode, "native", None)


# --- any requests -----------------------------------------------------------------------------------------------------

texts = st.text(max_size=8)
keys = st.one_of(st.sampled_from([key for key, _ in KEYS]), texts)
times = st.one_of(st.integers(0, (1 << 64) - 1), st.integers(1_700_000_000_000_000_000, 1_800_000_000_000_000_000))
scalars = st.one_of(
    st.builds(AnyValue, string_value=texts),
    st.builds(AnyValue, int_value=st.integers(-MOST - 1, MOST)),
    st.builds(AnyValue, double_value=st.floats(allow_nan=False)),
    st.builds(AnyValue, bool_value=st.booleans()),
)
values = st.one_of(
    scalars,
    st.builds(AnyValue, array_value=st.builds(ArrayValue, values=st.lists(scalars, max_size=3))),
    st.just(AnyValue(kvlist_value=KeyValueList(values=[KeyValue(key="k")]))),
    st.just(AnyValue(bytes_value=b"\xff")),
    st.just(AnyValue()),
)
attributes = st.lists(st.builds(KeyValue, key=keys, value=values), max_size=6, unique_by=lambda one: one.key)


def ids(size: int) -> st.SearchStrategy[bytes]:
    """None, or one that is not zeros: that is none, too."""
    return st.one_of(st.just(b""), st.binary(min_size=size, max_size=size).filter(any))


spans = st.builds(
    trace.Span,
    trace_id=ids(16), span_id=ids(8), parent_span_id=ids(8), name=texts, attributes=attributes,
    start_time_unix_nano=times, end_time_unix_nano=times,
    status=st.builds(trace.Status, code=st.integers(0, 2), message=texts),
    events=st.lists(st.builds(trace.Span.Event, name=texts), max_size=1),
)  # fmt: skip
numbers = st.one_of(
    st.builds(metrics.NumberDataPoint, attributes=attributes, time_unix_nano=times, as_int=st.integers(-MOST, MOST)),
    st.builds(metrics.NumberDataPoint, attributes=attributes, start_time_unix_nano=times, as_double=st.floats(0, 9)),
    st.builds(metrics.NumberDataPoint, time_unix_nano=times),
)
counts = st.lists(st.integers(0, 1 << 40), max_size=4)
buckets = st.builds(
    metrics.HistogramDataPoint,
    attributes=attributes, time_unix_nano=times, count=st.integers(0, 99), sum=st.floats(0, 9), min=st.floats(0, 9),
    max=st.floats(0, 9), bucket_counts=counts, explicit_bounds=st.lists(st.floats(0, 9), max_size=3),
)  # fmt: skip
exponential = st.builds(
    metrics.ExponentialHistogramDataPoint,
    attributes=attributes, time_unix_nano=times, count=st.integers(0, 99), sum=st.floats(0, 9),
    scale=st.integers(0, 5), zero_count=st.integers(0, 9),
    positive=st.builds(
        metrics.ExponentialHistogramDataPoint.Buckets, offset=st.integers(-99, 99), bucket_counts=counts
    ),
)  # fmt: skip
some = st.one_of(
    st.builds(metrics.Metric, name=texts, unit=texts, gauge=st.builds(metrics.Gauge, data_points=st.lists(numbers))),
    st.builds(metrics.Metric, name=texts, sum=st.builds(metrics.Sum, data_points=st.lists(numbers, max_size=3))),
    st.builds(metrics.Metric, histogram=st.builds(metrics.Histogram, data_points=st.lists(buckets, max_size=3))),
    st.builds(
        metrics.Metric,
        exponential_histogram=st.builds(metrics.ExponentialHistogram, data_points=st.lists(exponential, max_size=3)),
    ),
    st.just(metrics.Metric(name="s", summary=metrics.Summary(data_points=[metrics.SummaryDataPoint(count=1)]))),
    st.just(metrics.Metric(name="without data")),
)


@st.composite
def trace_requests(draw: st.DrawFn) -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    for resource in draw(st.lists(attributes, max_size=2)):
        group = request.resource_spans.add()
        group.resource.attributes.extend(resource)
        for name in draw(st.lists(st.sampled_from(["otel_rl", "other", ""]), max_size=2)):
            scope = group.scope_spans.add(spans=draw(st.lists(spans, max_size=3)))
            scope.scope.name = name
    return request


@st.composite
def metric_requests(draw: st.DrawFn) -> ExportMetricsServiceRequest:
    request = ExportMetricsServiceRequest()
    for resource in draw(st.lists(attributes, max_size=2)):
        group = request.resource_metrics.add()
        group.resource.attributes.extend(resource)
        group.scope_metrics.add(metrics=draw(st.lists(some, max_size=3)))
    return request


@pytest.mark.medium
@given(st.lists(trace_requests(), max_size=3))
@example([])
@settings(deadline=None, max_examples=150)
def test_spans_are_what_protobuf_reads(requests: list[ExportTraceServiceRequest]) -> None:
    """Every field and attribute, in C and in Python."""
    expected = [span for request in requests for span in spans_by_protobuf(request)]
    sent = [request.SerializeToString() for request in requests]
    assert expected == read_spans(*sent)
    with by_python():
        assert expected == read_spans(*sent)


@pytest.mark.medium
@given(st.lists(metric_requests(), max_size=3))
@example([])
@settings(deadline=None, max_examples=150)
def test_points_are_what_protobuf_reads(requests: list[ExportMetricsServiceRequest]) -> None:
    """Every field and attribute, in C and in Python."""
    expected = [point for request in requests for point in points_by_protobuf(request)]
    sent = [request.SerializeToString() for request in requests]
    assert expected == read_points(*sent)
    with by_python():
        assert expected == read_points(*sent)


# --- requests that something has damaged ------------------------------------------------------------------------------


def value_for(type: str) -> AnyValue:
    return {
        "int": AnyValue(int_value=300),
        "double": AnyValue(double_value=2.5),
        "string": AnyValue(string_value="text é"),
        "boolean": AnyValue(bool_value=True),
        "string[]": AnyValue(array_value=ArrayValue(values=[AnyValue(string_value="stop")])),
    }[type]


def whole_spans() -> ExportTraceServiceRequest:
    """Two spans with all that a span may have."""
    known = [one for one in v.ATTRIBUTES.values() if one.where == "span"]
    items = [KeyValue(key=one.key, value=value_for(one.type)) for one in known[::7]]
    items += [KeyValue(key="of the user", value=AnyValue(string_value="x" * 200))]
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    group.resource.attributes.add(key=v.RANK).value.int_value = 3
    scope = group.scope_spans.add(scope={"name": "otel_rl"})
    for number in range(2):
        scope.spans.add(
            trace_id=bytes(range(16)), span_id=bytes([9] * 8), parent_span_id=bytes([7] * 8), name=f"rl.step {number}",
            start_time_unix_nano=1 << 60, end_time_unix_nano=1 << 61, attributes=items, status={"code": 2},
        )  # fmt: skip
    return request


def whole_points() -> ExportMetricsServiceRequest:
    """A point of each kind."""
    attributes = [KeyValue(key=v.STAGE, value=AnyValue(string_value="rl.sample"))]
    request = ExportMetricsServiceRequest()
    group = request.resource_metrics.add()
    group.resource.attributes.add(key=v.RANK).value.int_value = 3
    scope = group.scope_metrics.add()
    point = metrics.NumberDataPoint(time_unix_nano=1 << 60, as_int=-3, attributes=attributes)
    scope.metrics.add(name="a", unit="s", gauge={"data_points": [point]})
    scope.metrics.add(name="b", sum={"data_points": [metrics.NumberDataPoint(as_double=2.5)]})
    explicit = metrics.HistogramDataPoint(count=3, bucket_counts=[1, 2], explicit_bounds=[0.5], attributes=attributes)
    scope.metrics.add(name="c", histogram={"data_points": [explicit]})
    growing = metrics.ExponentialHistogramDataPoint(scale=2, attributes=attributes)
    growing.positive.bucket_counts.extend([1, 300, 2])
    scope.metrics.add(name="d", exponential_histogram={"data_points": [growing]})
    return request


def mutants(whole: bytes, count: int) -> Iterator[bytes]:
    """Flip, remove and repeat bytes."""
    draw = random.Random(7)
    for _ in range(count):
        data = bytearray(whole)
        for _ in range(draw.choice((1, 1, 2, 5))):
            at = draw.randrange(len(data))
            match draw.randrange(4):
                case 0:
                    data[at] = draw.randrange(256)
                case 1:
                    data[at] ^= 1 << draw.randrange(8)
                case 2:
                    del data[at : at + draw.choice((1, 2, 9))]
                case 3:
                    data[at:at] = data[at : at + draw.choice((1, 4, 30))]
        yield bytes(data)


def names_a_key_twice(items: Any) -> bool:
    """Such attributes are no map: which of them counts is not said."""
    return len({one.key for one in items}) < len(items)


def has_odd_ids(span: trace.Span) -> bool:
    return not (len(span.trace_id) in (0, 16) and len(span.span_id) in (0, 8) and len(span.parent_span_id) in (0, 8))


@needs_c
@pytest.mark.medium
def test_damaged_spans_are_read_as_protobuf_reads_them() -> None:
    """What protobuf refuses leaves nothing, or what lies before the damage is right."""
    tried = 0
    for data in mutants(whole_spans().SerializeToString(), 3000):
        read = decode_spans([data])
        try:
            request = ExportTraceServiceRequest.FromString(data)
        except DecodeError:
            continue
        listed = [span for group in request.resource_spans for scope in group.scope_spans for span in scope.spans]
        if any(map(has_odd_ids, listed)):
            assert ([0], 0) == (read.refused, len(read.rows))
        elif not any(names_a_key_twice(span.attributes) for span in listed):
            tried += 1
            assert repr(spans_by_protobuf(request)) == repr(ordered(read_spans(data), spans_by_protobuf(request)))
    assert tried > 400


@needs_c
@pytest.mark.medium
def test_damaged_points_are_read_as_protobuf_reads_them() -> None:
    """The same of points."""
    tried = 0
    for data in mutants(whole_points().SerializeToString(), 3000):
        read = read_points(data)
        try:
            expected = points_by_protobuf(ExportMetricsServiceRequest.FromString(data))
        except DecodeError:
            continue
        tried += 1
        assert repr(expected) == repr(read)
    assert tried > 400


def ordered(read: list[Plain], expected: list[Plain]) -> list[Plain]:
    """Put attributes in the order of other ones, so that their texts can be compared: NaN does not equal itself."""
    return [
        (*one[:7], in_order(one[7], other[7]), *one[8:]) for one, other in zip(read, expected, strict=True)
    ]  # fmt: skip


def in_order(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return {key: one[key] for key in [*other, *one] if key in one}


# --- as readers meet them ---------------------------------------------------------------------------------------------


def test_a_request_that_is_none_leaves_the_others(tmp_path: Path) -> None:
    """Between two that are whole; the reader names it as damage, and what the C made of it counts for nothing."""
    whole = whole_spans().SerializeToString()
    frames = [pack(FRAME_TYPES["traces"], payload, 2, 1, 2) for payload in (whole, whole[:-9], whole)]
    (tmp_path / "w.traces.1.otlp").write_bytes(b"".join(frames))
    run = open_run(tmp_path)
    expected = spans_by_protobuf(ExportTraceServiceRequest.FromString(2 * whole))
    assert expected == [(*one[:7], dict(one.attributes), dict(one.resource), one.is_own) for one in run.spans(None)]
    assert [("content", len(frames[0]))] == [(one.reason, one.offset) for one in run.damage]


def test_a_histogram_that_is_none_is_damage() -> None:
    """Its request is named."""
    request = whole_points()
    broken = request.SerializeToString().replace(b"\x12\x04\x01\xac\x02\x02", b"\x12\x04\x01\xac\x82\x82")
    points = decode_points([request.SerializeToString(), broken])
    assert (["a", "b", "c", "d", "a", "b", "c"], [1]) == ([one.name for one in points.views(JOURNAL)], points.refused)


def test_only_wanted_points_and_attributes_are_made() -> None:
    """By name, or by a function of the name."""
    points = decode_points([whole_points().SerializeToString()])
    wanted = [*points.views(JOURNAL, "c"), *points.views(JOURNAL, lambda name: name > "b")]
    assert ["c", "c", "d"] == [one.name for one in wanted]
    spans = decode_spans([whole_spans().SerializeToString()])
    assert [{}, {}] == [one.attributes for one in spans.views(JOURNAL, ())]
    assert [{"of the user": "x" * 200}] * 2 == [one.attributes for one in spans.views(JOURNAL, {"of the user"})]


@needs_c
def test_the_columns_in_c_and_in_python_are_the_same_bytes() -> None:
    """For requests that our own encoder writes."""
    requests = [whole_spans().SerializeToString()] * 2
    native: Any = decode.native
    assert fallback.spans(requests, KEYS) == native.spans(requests, KEYS)
    requests = [whole_points().SerializeToString()] * 2
    assert fallback.points(requests) == native.points(requests)


@needs_c
@pytest.mark.parametrize("arguments", [(), ([],), ([b""], 3), ([3], []), ([b""], [("k", 9)]), ([b""], [("k", 0)] * 2)])
def test_the_c_refuses_what_it_does_not_take(arguments: tuple[Any, ...]) -> None:
    """With an exception."""
    native: Any = decode.native
    with pytest.raises((TypeError, ValueError)):
        native.spans(*arguments)
