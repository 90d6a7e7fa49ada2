"""What requests ask of the encoder: lists of one text in C, exemplars of histograms."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Exemplar as ExemplarMessage

from otel_rl.analysis.buckets import BOUNDS
from otel_rl.journal.columns.messages import decode
from otel_rl.journal.otlp import encode
from otel_rl.journal.otlp.encode import SpanEncoder
from otel_rl.metrics.record import Fold
from otel_rl.records import Exemplar
from otel_rl.vocabulary import REQUEST_BOUNDARIES, TTFT

LABELS = (("a", "b"),)


def span(value: Any) -> SimpleNamespace:
    """Make a span with one attribute."""
    return SimpleNamespace(
        name="s", trace_id=1, span_id=2, parent_id=0, start_ns=1, end_ns=2, attributes={"k": value}, events=None,
        links=None, status=None, kind=1,
    )  # fmt: skip


def test_lists_and_other_values_follow_each_other() -> None:
    """Lists of one text are encoded in C, others in Python."""
    values = [("stop",), "text", ("length",), 5, ("a", "b"), ("stop",), (), (7,), ("x" * 40,), ("abort",)]
    encoder = SpanEncoder({}, max_text=32)
    (encoded,) = encoder.encode([span(value) for value in values])
    group = ExportTraceServiceRequest.FromString(encoded.payload).resource_spans[0]
    found = [decode(one.attributes).get("k") for one in group.scope_spans[0].spans]
    assert [*values[:8], ("x" * 32,), ("abort",)] == found
    assert {} == encoder.dropped


@pytest.mark.skipif(encode.native is None, reason="no compiler where otel_rl was installed")
def test_a_list_of_one_text_is_encoded_in_c() -> None:
    """Other lists are not."""
    encoder = SpanEncoder({})
    found = [encoder._in_c(span(value)) is not None for value in (("stop",), ("length",), ("a", "b"))]
    assert [True, True, False] == found


def binned(fold: Fold, *values: float) -> list[int]:
    """Count values by bucket."""
    bounds = BOUNDS if fold.is_exponential else REQUEST_BOUNDARIES
    places = Counter(bisect_left(bounds, value) for value in values)
    return [places[place] for place in range(len(bounds) + 1)]


@pytest.mark.parametrize("is_exponential", [False, True])
def test_exemplars_are_written_once_and_the_latest_of_a_bucket(is_exponential: bool) -> None:
    """With time, value and span; of a series that does not exist none is kept."""
    fold = Fold(5, is_exponential=is_exponential)
    fold.merge(TTFT, LABELS, binned(fold, 0.00005, 20_000.0, 20_000.0), (3.0, 0.00005, 20_000.0))
    for value, span_id in ((0.00005, 1), (20_000.0, 2), (30_000.0, 3)):
        fold.exemplar(TTFT, LABELS, Exemplar(7, value, 9, span_id))
    fold.exemplar(TTFT, (("a", "c"),), Exemplar(7, 1.0, 9, 4))
    fold.merge(TTFT, LABELS, binned(fold, 0.001), (1.0, 0.001, 0.001))
    points = [_points(fold), _points(fold)]
    counts = points[0][0].positive.bucket_counts if is_exponential else points[0][0].bucket_counts
    assert ([1], 4, [1, 1, 2]) == (
        [len(found) for found in points if found],
        points[0][0].count,
        [count for count in counts if count],
    )
    expected = [
        ExemplarMessage(
            time_unix_nano=7,
            as_double=value,
            span_id=number.to_bytes(8, "big"),
            trace_id=(9).to_bytes(16, "big"),
        )
        for value, number in ((0.00005, 1), (30_000.0, 3))
    ]
    assert expected == list(points[0][0].exemplars)
    assert (4.0, 0.00005, 20_000.0) == (points[0][0].sum, points[0][0].min, points[0][0].max)


def _points(fold: Fold) -> list[Any]:
    """Encode what the fold has, and parse it."""
    requests = SpanEncoder({}).encode_metrics(fold.drain(10))
    return [
        point
        for request in requests
        for group in ExportMetricsServiceRequest.FromString(request.payload).resource_metrics
        for scope in group.scope_metrics
        for metric in scope.metrics
        for point in getattr(metric, str(metric.WhichOneof("data"))).data_points
    ]
