"""Encoding: the stock encoder's very messages, and nothing that makes it raise or lose a batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.metrics import export
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from otel_rl.journal.otlp import encode, wire
from otel_rl.journal.otlp.encode import OtlpRequest, SpanEncoder
from otel_rl.records import Attributes, Distribution, Log, MetricPoints, Number, Point, SpanEvent, SpanLink, Value

pytestmark = pytest.mark.medium

RESOURCE: dict[str, Value] = {"service.name": "test", "rl.rank": 3, "rl.flag": True, "rl.list": ["a", "b"]}
fewer = settings(max_examples=60)
SCOPE = InstrumentationScope("otel_rl", "1.2.3")
ANCHOR = 300


@dataclass
class Finished:
    """A finished span as the recorder gives it."""

    name: Any = "rl.reward"
    trace_id: Any = 0x0123456789ABCDEF0123456789ABCDEF
    span_id: Any = 0x0123456789ABCDEF
    parent_id: Any = 0
    start_ns: Any = 1_000
    end_ns: Any = 2_000
    attributes: Any = field(default_factory=dict)
    events: Any = None
    links: Any = None
    status: Any = None
    kind: Any = 1

    @property
    def trace(self) -> Any:
        """What a stage has of it."""
        return SimpleNamespace(trace_id=self.trace_id, anchor=ANCHOR)

    @property
    def began(self) -> Any:
        """The begin as a stage has it."""
        return self.start_ns - ANCHOR

    @property
    def ended(self) -> Any:
        """The end as a stage has it."""
        return self.end_ns - ANCHOR


STAGE: type[Finished] | None = Finished


@pytest.fixture(params=["C", "C, one by one", "Python"], autouse=True, scope="module")
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Encode spans in every way."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "Python":
            patch.setattr(encode, "native", None)
        elif encode.native is None:
            pytest.skip("no compiler where otel_rl was installed")
        if request.param == "C, one by one":
            patch.setitem(globals(), "STAGE", None)
        yield


def encoder() -> SpanEncoder:
    """Make an encoder with the test's resource."""
    return SpanEncoder(RESOURCE, "1.2.3", stage=STAGE)


def parsed(requests: list[OtlpRequest]) -> list[Any]:
    """Parse the spans of all requests."""
    found = []
    for request in requests:
        for group in ExportTraceServiceRequest.FromString(request.payload).resource_spans:
            for scope in group.scope_spans:
                found.extend(scope.spans)
    return found


def values(message: Any) -> dict[str, Any]:
    """Read the attributes of a message, each as the text of its value."""
    return {
        item.key: getattr(item.value, item.value.WhichOneof("value") or "string_value") for item in message.attributes
    }


def context(trace_id: int, span_id: int) -> SpanContext:
    """Make the context of a sampled span."""
    return SpanContext(trace_id, span_id, False, TraceFlags(1))


def stock(spans: list[Finished]) -> ExportTraceServiceRequest:
    """Encode the same spans as the SDK does."""
    return encode_spans(
        [
            ReadableSpan(
                span.name,
                context(span.trace_id, span.span_id),
                context(span.trace_id, span.parent_id) if span.parent_id else None,
                Resource(RESOURCE),
                span.attributes,
                [Event(event.name, event.attributes, event.time_ns) for event in span.events or ()],
                [Link(context(link.trace_id, link.span_id), link.attributes) for link in span.links or ()],
                SpanKind(span.kind - 1),
                None,
                Status(StatusCode(span.status[0]), span.status[1] or None) if span.status else Status(StatusCode.UNSET),
                span.start_ns,
                span.end_ns,
                SCOPE,
            )
            for span in spans
        ]
    )


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
times = st.integers(0, 2**62)
numbers = st.integers(-(2**63), 2**63 - 1)
plain = texts | st.booleans() | numbers | st.floats()
listed = st.lists(texts, max_size=3) | st.lists(numbers, max_size=3).map(tuple) | st.lists(st.floats(), max_size=3)
statuses = st.none() | st.just((1, "")) | st.tuples(st.just(2), texts)


def attributes(value: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Make attributes with such values."""
    return st.dictionaries(names, value, max_size=6)


def finished(value: st.SearchStrategy[Any], **more: st.SearchStrategy[Any]) -> st.SearchStrategy[Finished]:
    """Make spans with such attributes."""
    ids = {"trace_id": st.integers(1, 2**128 - 1), "span_id": st.integers(1, 2**64 - 1)}
    return st.builds(
        lambda start, length, **given: Finished(start_ns=start, end_ns=start + length, **given),
        start=times,
        length=times,
        name=st.sampled_from(["a", "b", "c"]) | texts,
        parent_id=st.just(0) | st.integers(1, 2**64 - 1),
        kind=st.integers(1, 5),
        attributes=st.none() | attributes(value),
        status=statuses,
        **ids,
        **more,
    )


events = st.lists(st.builds(SpanEvent, names, times, attributes(plain)), max_size=3)
links = st.lists(
    st.builds(SpanLink, st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), attributes(plain)), max_size=3
)


@fewer
@given(st.lists(finished(plain), min_size=1, max_size=8))
def test_spans_are_the_stock_ones(spans: list[Finished]) -> None:
    """Spans without events and links: deterministic bytes equal the stock encoder's."""
    (request,) = encoder().encode(spans)
    ours = ExportTraceServiceRequest.FromString(request.payload)
    assert stock(spans).SerializeToString(deterministic=True) == ours.SerializeToString(deterministic=True)
    assert len(spans) == request.count
    assert (min(s.start_ns for s in spans), max(s.end_ns for s in spans)) == (request.first_ns, request.last_ns)


@fewer
@given(st.lists(finished(plain | listed, events=events, links=links), min_size=1, max_size=4))
def test_spans_with_everything_are_the_stock_ones(spans: list[Finished]) -> None:
    """Spans with lists, events and links parse to the stock encoder's message."""
    (request,) = encoder().encode(spans)
    theirs = stock(spans).SerializeToString(deterministic=True)
    assert theirs == ExportTraceServiceRequest.FromString(request.payload).SerializeToString(deterministic=True)


@fewer
@given(st.lists(finished(plain), min_size=1, max_size=6))
def test_the_same_bytes_again(spans: list[Finished]) -> None:
    """A used encoder and a new one make the same bytes."""
    used = encoder()
    used.encode(spans)
    assert encoder().encode(spans) == used.encode(spans)


def test_payload_is_canonical() -> None:
    """The payload itself is what protobuf would write."""
    (request,) = encoder().encode([Finished(attributes={"a": 1})])
    assert ExportTraceServiceRequest.FromString(request.payload).SerializeToString() == request.payload


anything: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=10)
    | st.binary(max_size=4)
    | st.just(object()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
hostile = st.builds(
    Finished,
    *[anything] * 7,
    st.none() | st.lists(st.builds(SpanEvent, anything, anything, anything), max_size=2) | anything,
    st.none() | st.lists(st.builds(SpanLink, anything, anything, anything), max_size=2) | anything,
    st.none() | st.tuples(anything, anything) | anything,
    anything,
)


@fewer
@given(st.lists(hostile, max_size=4))
def test_nothing_raises_and_no_batch_is_lost(spans: list[Finished]) -> None:
    """Whatever the spans hold, the good one among them is encoded and each of the others is encoded or counted."""
    encode_bad = encoder()
    requests = encode_bad.encode([*spans, Finished(name="good")])
    found = parsed(requests)
    assert "good" == found[-1].name
    assert len(spans) + 1 == len(found) + encode_bad.dropped["traces", "unencodable"]
    assert len(found) == sum(request.count for request in requests)
    assert all(span.end_time_unix_nano >= span.start_time_unix_nano for span in found)


@pytest.mark.parametrize(
    ("value", "expected", "repair"),
    [
        ("a\ud800b", "a\ufffdb", "text_replaced"),
        ("x" * 3000, "x" * 2048, "text_cut"),
        (2**63, str(2**63), "int_as_text"),
        (-(2**63) - 1, str(-(2**63) - 1), "int_as_text"),
        (10**5000, hex(10**5000)[:2048], "text_cut"),
    ],
    ids=["surrogate", "long", "large", "small", "huge"],
)
def test_cleaned_values(value: Value, expected: str, repair: str) -> None:
    """A value that does not fit is cut or replaced and counted; its neighbours stay."""
    cleaning = encoder()
    (span,) = parsed(cleaning.encode([Finished(attributes={"before": 1, "key": value, "after": 2.5})]))
    assert {"before": 1, "key": expected, "after": 2.5} == values(span)
    assert 1 == cleaning.cleaned[repair]
    assert {} == cleaning.dropped


def test_huge_text_is_cut_first() -> None:
    """A string of 50 MB costs a request of a few kilobytes."""
    (request,) = encoder().encode([Finished(attributes={"prompt": "\ud800" + "x" * 50_000_000})])
    assert len(request.payload) < 4096


def test_values_without_a_type() -> None:
    """An object that OTLP has no type for is dropped, never turned to text, and counted."""
    cleaning = encoder()
    (span,) = parsed(cleaning.encode([Finished(attributes={"object": object(), "key": 1, "nested": [1, [2]]})]))
    assert ["key", "nested"] == [item.key for item in span.attributes]
    assert (1, 2) == (span.dropped_attributes_count, cleaning.cleaned["value_dropped"])


def test_too_many_attributes() -> None:
    """Attributes beyond the limit are dropped and counted in the span."""
    (span,) = parsed(encoder().encode([Finished(attributes={f"key{number}": number for number in range(200)})]))
    assert {f"key{number}": number for number in range(128)} == values(span)
    assert 72 == span.dropped_attributes_count


def test_too_many_events() -> None:
    """Events and links beyond the limit are dropped and counted in the span."""
    bad = Finished(events=[SpanEvent("e", 1)] * 130, links=[SpanLink(1, 2)] * 131)
    (span,) = parsed(encoder().encode([bad]))
    assert (128, 2, 128, 3) == (len(span.events), span.dropped_events_count, len(span.links), span.dropped_links_count)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (-5, 10, (0, 10)),
        (10, 5, (10, 10)),
        (-9, -7, (0, 0)),
        (math.nan, 1, (0, 1)),
        (2**70, 1, (2**64 - 1, 2**64 - 1)),
    ],
)
def test_impossible_times(start: float, end: int, expected: tuple[int, int]) -> None:
    """Negative, reversed and absurd times are clamped and counted."""
    cleaning = encoder()
    (span,) = parsed(cleaning.encode([Finished(start_ns=start, end_ns=end)]))
    assert expected == (span.start_time_unix_nano, span.end_time_unix_nano)
    assert cleaning.cleaned["time_clamped"] > 0


def test_hostile_names() -> None:
    """A name or key that does not fit is cleaned; an empty or doubled key, or one that is no string, is dropped."""
    bad = Finished(name="\ud800", attributes=dict([("\ud800", 1), ("\ufffd", 2), ("", 3), (7, 4), ("k" * 3000, 5)]))
    (span,) = parsed(encoder().encode([bad]))
    assert ("\ufffd", {"\ufffd": 1, "k" * 2048: 5}) == (span.name, values(span))
    assert 3 == span.dropped_attributes_count


def test_lists_are_bounded() -> None:
    """Of a long list the beginning is kept."""
    (span,) = parsed(encoder().encode([Finished(attributes={"list": list(range(5000))})]))
    assert 1024 == len(span.attributes[0].value.array_value.values)


def test_impossible_ids() -> None:
    """A span whose ids do not fit is counted; the others of its batch are encoded."""
    cleaning = encoder()
    found = parsed(cleaning.encode([Finished(span_id=2**64), Finished(span_id=5), Finished(trace_id=-1)]))
    assert [bytes(7) + b"\x05"] == [span.span_id for span in found]
    assert {("traces", "unencodable"): 2} == cleaning.dropped


def test_requests_stay_below_their_limit() -> None:
    """Many spans become several requests of less than 1 MiB, each with the resource, in order and without a gap."""
    spans = [
        Finished(span_id=number + 1, start_ns=number, end_ns=number, attributes={"k": "x" * 500})
        for number in range(5000)
    ]
    requests = encoder().encode(spans)
    assert all(len(request.payload) < 1 << 20 for request in requests)
    assert min(len(request.payload) for request in requests[:-1]) > (1 << 20) - 10_000
    assert [number + 1 for number in range(5000)] == [int.from_bytes(span.span_id, "big") for span in parsed(requests)]
    assert [0, *(request.last_ns + 1 for request in requests[:-1])] == [request.first_ns for request in requests]
    resources = [
        ExportTraceServiceRequest.FromString(request.payload).resource_spans[0].resource for request in requests
    ]
    assert all(resource == resources[0] and resource.attributes for resource in resources)


def test_a_record_above_the_limit_goes_alone() -> None:
    """A single record larger than a request makes a larger request of its own."""
    large = Finished(name="large", attributes={f"key{number}": ["x" * 2048] * 10 for number in range(100)})
    requests = encoder().encode([Finished(), large, Finished()])
    assert [1, 1, 1] == [request.count for request in requests]
    assert len(requests[1].payload) > 1 << 20


def test_another_resource() -> None:
    """Requests carry the resource that was set last."""
    changing = encoder()
    changing.set_resource({"rl.rank": 9})
    (request,) = changing.encode([Finished()])
    (group,) = ExportTraceServiceRequest.FromString(request.payload).resource_spans
    assert {"rl.rank": 9} == values(group.resource)


def test_nothing_makes_no_request() -> None:
    """Without records there is no request."""
    empty = encoder()
    gauge = MetricPoints("m", "gauge", "1", "", [])
    assert ([], [], []) == (empty.encode([]), empty.encode_logs([]), empty.encode_metrics([gauge]))


# --- logs


def test_logs_are_the_stock_ones() -> None:
    """Log records parse to the stock encoder's message."""
    logs = [Log("rl.stage.open", 5, {"a": 1, "b": [1.5]}, "rl.reward", 9, 7, 8), Log("e", 6, {}, "", 17)]
    records = [
        LogRecord(
            timestamp=log.time_ns,
            observed_timestamp=log.time_ns,
            trace_id=log.trace_id,
            span_id=log.span_id,
            severity_text={9: "INFO", 17: "ERROR"}[log.severity],
            severity_number=SeverityNumber(log.severity),
            body=log.body,
            attributes=dict(log.attributes),
            event_name=log.event_name,
        )
        for log in logs
    ]
    expected = encode_logs([ReadableLogRecord(record, Resource(RESOURCE), SCOPE) for record in records])
    (request,) = encoder().encode_logs(logs)
    assert expected == ExportLogsServiceRequest.FromString(request.payload)
    assert ("logs", 2, 5, 6) == (request.signal, request.count, request.first_ns, request.last_ns)


@fewer
@given(st.lists(st.builds(Log, *[anything] * 7), max_size=4))
def test_logs_never_raise(logs: list[Log]) -> None:
    """Whatever log records hold, each is encoded or counted."""
    hostile_logs = encoder()
    requests = hostile_logs.encode_logs([*logs, Log("good", 1, {})])
    assert len(logs) + 1 == sum(request.count for request in requests) + hostile_logs.dropped["logs", "unencodable"]


# --- metrics

metric_attributes = attributes(plain | st.lists(texts, max_size=2))
labels = st.dictionaries(texts.filter(bool), plain, max_size=3).map(lambda kept: tuple(kept.items()))
gauge_points = st.lists(st.builds(Number, times, numbers | st.floats(), metric_attributes), min_size=1, max_size=5)


def stock_metrics(metric: MetricPoints, data: Any) -> ExportMetricsServiceRequest:
    """Encode a metric as the SDK does."""
    scoped = export.ScopeMetrics(SCOPE, [export.Metric(metric.name, metric.description, metric.unit, data)], "")
    return encode_metrics(export.MetricsData([export.ResourceMetrics(Resource(RESOURCE), [scoped], "")]))


def check(metric: MetricPoints, data: Any) -> None:
    """Compare our encoding of a metric with the stock one, NaN included."""
    (request,) = encoder().encode_metrics([metric])
    ours = ExportMetricsServiceRequest.FromString(request.payload)
    expected = stock_metrics(metric, data)
    assert expected.SerializeToString(deterministic=True) == ours.SerializeToString(deterministic=True)
    assert ("metrics", len(metric.points)) == (request.signal, request.count)
    moments = [point.time_ns for point in metric.points]
    assert (min(moments), max(moments)) == (request.first_ns, request.last_ns)


@fewer
@given(names, texts, gauge_points)
def test_gauges_are_the_stock_ones(name: str, text: str, points: list[Number]) -> None:
    """Gauge points, NaN and Inf included, are what the stock encoder makes of them."""
    metric = MetricPoints(name, "gauge", "s", text, points)
    check(metric, export.Gauge([export.NumberDataPoint(p.attributes, 0, p.time_ns, p.value) for p in points]))


@fewer
@given(st.lists(st.builds(Point, st.just("g"), numbers | st.floats(), times, labels), min_size=1, max_size=5))
def test_gauges_as_they_were_recorded_are_the_stock_ones(points: list[Point]) -> None:
    """With labels instead of attributes, of which 1 is not True."""
    metric = MetricPoints("g", "gauge", "s", "", points)
    check(metric, export.Gauge([export.NumberDataPoint(dict(p.labels), 0, p.time_ns, p.value) for p in points]))


@fewer
@given(gauge_points, times)
def test_counters_are_the_stock_ones(points: list[Number], start_ns: int) -> None:
    """Counters are cumulative monotonic sums."""
    metric = MetricPoints("c", "counter", "1", "", points, start_ns)
    given_points = [export.NumberDataPoint(p.attributes, start_ns, p.time_ns, p.value) for p in points]
    check(metric, export.Sum(given_points, export.AggregationTemporality.CUMULATIVE, True))


@fewer
@given(st.lists(st.floats(allow_nan=False), max_size=5), st.data())
def test_histograms_are_the_stock_ones(boundaries: list[float], data: st.DataObject) -> None:
    """Histograms are cumulative, with sum, least and greatest value."""
    size = len(boundaries) + 1
    counts = data.draw(st.lists(st.integers(1, 2**40), min_size=size, max_size=size))
    point = Distribution(9, counts, 2.5, -1.0, math.inf, {"k": "v"})
    metric = MetricPoints("h", "histogram", "s", "text", [point], 3, boundaries)
    given_point = export.HistogramDataPoint({"k": "v"}, 3, 9, sum(counts), 2.5, counts, boundaries, -1.0, math.inf)
    check(metric, export.Histogram([given_point], export.AggregationTemporality.CUMULATIVE))


def test_histogram_without_values() -> None:
    """A histogram that counted nothing has no least and no greatest value."""
    metric = MetricPoints("h", "histogram", "s", "", [Distribution(9, [0, 0], 0.0, math.inf, -math.inf)], 3, [1.0])
    (request,) = encoder().encode_metrics([metric])
    (group,) = ExportMetricsServiceRequest.FromString(request.payload).resource_metrics
    (point,) = group.scope_metrics[0].metrics[0].histogram.data_points
    assert (0, False, False) == (point.count, point.HasField("min"), point.HasField("max"))


def test_attributes_are_not_mixed_up() -> None:
    """1, 1.0 and True are equal and still three different attribute values."""
    points = [Number(1, 1, {"k": value}) for value in (1, True, 1.0, "1", 1)]
    (request,) = encoder().encode_metrics([MetricPoints("g", "gauge", "1", "", points)])
    (group,) = ExportMetricsServiceRequest.FromString(request.payload).resource_metrics
    found = group.scope_metrics[0].metrics[0].gauge.data_points
    kinds = [point.attributes[0].value.WhichOneof("value") for point in found]
    assert ["int_value", "bool_value", "double_value", "string_value", "int_value"] == kinds


def test_bad_points_are_counted() -> None:
    """A point that cannot be encoded is counted; an integer beyond 64 bits becomes a float."""
    counting = encoder()
    wrong_value: Any = "x"
    points = [Number(1, 2**70), Number(2, wrong_value), Number(3, 10**400), Number(-4, 1.5)]
    wrong = Distribution(1, [1], 1.0, 1.0, 1.0)
    no_points: Any = None
    metrics = [
        MetricPoints("g", "gauge", "1", "", points),
        MetricPoints("h", "histogram", "1", "", [wrong], 0, [1.0]),
        MetricPoints("n", "gauge", "1", "", no_points),
    ]
    (request,) = counting.encode_metrics(metrics)
    (group,) = ExportMetricsServiceRequest.FromString(request.payload).resource_metrics
    found = group.scope_metrics[0].metrics[0].gauge.data_points
    assert [(1, float(2**70)), (0, 1.5)] == [(point.time_unix_nano, point.as_double) for point in found]
    assert {("metrics", "unencodable"): 4} == counting.dropped


@fewer
@given(
    st.lists(
        st.builds(MetricPoints, *[anything] * 4, st.lists(st.builds(Number, *[anything] * 3)) | anything), max_size=3
    )
)
def test_metrics_never_raise(metrics: list[MetricPoints]) -> None:
    """Whatever metrics hold, the good one among them is encoded."""
    good = MetricPoints("good", "gauge", "1", "", [Number(1, 2)])
    requests = encoder().encode_metrics([*metrics, good])
    (*_, group) = ExportMetricsServiceRequest.FromString(requests[-1].payload).resource_metrics
    assert "good" == group.scope_metrics[-1].metrics[-1].name


def test_many_points_are_split() -> None:
    """Points of one metric beyond a request's size go on in the next request under the same name."""
    points = [Number(number, number, {"k": "x" * 500}) for number in range(5000)]
    requests = encoder().encode_metrics([MetricPoints("g", "gauge", "s", "text", points)])
    assert all(len(request.payload) <= wire.MAX_REQUEST_BYTES for request in requests)
    found = []
    for request in requests:
        (group,) = ExportMetricsServiceRequest.FromString(request.payload).resource_metrics
        for metric in group.scope_metrics[0].metrics:
            assert ("g", "s", "text") == (metric.name, metric.unit, metric.description)
            found.extend(point.as_int for point in metric.gauge.data_points)
    assert list(range(5000)) == found


def test_resource_is_cleaned() -> None:
    """A resource from hostile environment variables does not stop the encoder."""
    resource: Attributes = {"service.name": "\ud800", "ok": 1}
    (request,) = SpanEncoder(resource, "1").encode([Finished()])
    (group,) = ExportTraceServiceRequest.FromString(request.payload).resource_spans
    assert {"service.name": "\ufffd", "ok": 1} == values(group.resource)
