"""Exponential histograms: what a reader finds of values that were counted, encoded and journaled."""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics import Histogram as SdkHistogram
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation

from otel_rl.analysis.buckets import BOUNDS, MOST_BUCKETS, SCALE, layout
from otel_rl.analysis.histogram import Histogram
from otel_rl.journal.columns.decode import decode_points
from otel_rl.journal.otlp.encode import SpanEncoder
from otel_rl.metrics.record import Fold

NAME = "rl.reward.duration"
FACTOR = 2 ** (1 / 2**SCALE)
NARROW = st.floats(1e-3, 900)
"""Six decades and less, which is what one histogram can have at its full resolution."""
ANY = st.one_of(st.just(0.0), st.floats(0, 2.0**24), st.floats(1e-9, 1e-3))


class _Journal:
    def resource(self, message: bytes) -> dict[str, Any]:
        return {}


def encoded(values: list[float]) -> bytes:
    """Count values as the flusher does, and encode them."""
    fold = Fold(5)
    fold.durations(NAME, values)
    (request,) = SpanEncoder({}).encode_metrics(fold.drain(9))
    return request.payload


def read(payload: bytes) -> Histogram:
    """Read the histogram of a request."""
    (point,) = decode_points([payload]).views(_Journal())  # type: ignore[arg-type]
    return Histogram(point.boundaries, point.counts, point.min, point.max)


def message(payload: bytes) -> Any:
    """Parse the point of a request."""
    (group,) = ExportMetricsServiceRequest.FromString(payload).resource_metrics
    return group.scope_metrics[0].metrics[0].exponential_histogram.data_points[0]


def exact(values: list[float], share: float) -> float:
    """The value of which that share is not greater."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


@given(st.lists(NARROW, min_size=1, max_size=80), st.floats(0, 1))
def test_a_quantile_is_within_a_bucket_of_the_truth(values: list[float], share: float) -> None:
    """Less than 9.1 % off."""
    found, true = read(encoded(values)).quantile(share), exact(values, share)
    assert true / FACTOR * (1 - 1e-9) <= found <= true * FACTOR * (1 + 1e-9)


@given(st.lists(ANY, min_size=1, max_size=80))
def test_every_value_is_in_its_bucket(values: list[float]) -> None:
    """Of any data: the count of each bucket, least, greatest and sum; never more buckets than fit."""
    payload = encoded(values)
    point, found = message(payload), read(payload)
    assert (len(values), min(values), max(values), math.fsum(values)) == (
        point.count, point.min, point.max, pytest.approx(point.sum),
    )  # fmt: skip
    edges = (-math.inf, *found.boundaries, math.inf)
    expected = [sum(low < value <= high for value in values) for low, high in pairwise(edges)]
    assert expected == list(found.counts)
    assert len(point.positive.bucket_counts) <= MOST_BUCKETS
    spread = bisect_left(BOUNDS, max(values)) - bisect_left(BOUNDS, min(values))
    assert spread >= MOST_BUCKETS - 2 or point.scale == SCALE


@settings(max_examples=50)
@given(st.lists(st.lists(ANY, min_size=1, max_size=20), min_size=2, max_size=5))
@example([[0.0, 0.5], [1.0, 9975793.0, 1e-05], [480775.0, 0.5]])  # three scales
def test_what_is_added_is_as_if_counted_together(parts: list[list[float]]) -> None:
    """Also where some have wider buckets; then all have those."""
    together = [value for part in parts for value in part]
    added = reduce(Histogram.plus, (read(encoded(part)) for part in parts))
    edges = (-math.inf, *added.boundaries, math.inf)
    expected = [sum(low < value <= high for value in together) for low, high in pairwise(edges)]
    assert expected == list(added.counts)
    scale = min(message(encoded(part)).scale for part in parts)
    for share in (0.0, 0.5, 0.99):
        true, found = exact(together, share), added.quantile(share)
        width = 2 ** (2.0**-scale) * (1 + 1e-9)
        assert (found <= BOUNDS[0] and true <= BOUNDS[0]) or true / width <= found <= true * width


def test_neighbours_become_one_where_there_are_too_many() -> None:
    """Twenty-one octaves take buckets of twice the width, and the same bounds among them."""
    counts = [0] * (len(BOUNDS) + 1)
    counts[1] = counts[2] = counts[1 + 21 * 8] = 1
    assert (2, -80, [2, *[0] * 83, 1]) == layout(counts, BOUNDS[0] * 1.01, BOUNDS[21 * 8] * 1.01)


@settings(max_examples=50)
@given(st.lists(NARROW, min_size=1, max_size=40))
def test_the_sdk_counts_in_the_same_buckets(values: list[float]) -> None:
    """At the same scale, and we read what it writes."""
    reader = InMemoryMetricReader(
        preferred_aggregation={SdkHistogram: ExponentialBucketHistogramAggregation(MOST_BUCKETS, SCALE)}
    )
    provider = MeterProvider([reader], shutdown_on_exit=False)
    histogram = provider.get_meter("m").create_histogram("h")
    for value in values:
        histogram.record(value)
    data = reader.get_metrics_data()
    assert data is not None
    theirs, ours = encode_metrics(data).SerializeToString(), encoded(values)
    provider.shutdown()
    assert _filled(message(ours)) == _filled(message(theirs))
    assert read(theirs).quantile(0.5) == pytest.approx(read(ours).quantile(0.5))


def _filled(point: Any) -> dict[int, int]:
    assert SCALE == point.scale
    places = enumerate(point.positive.bucket_counts, point.positive.offset)
    return {place: count for place, count in places if count}


def test_what_others_write_is_read() -> None:
    """Negative values are with those of zero; bounds beyond a float are infinite."""
    request = ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="h")
    point = metric.exponential_histogram.data_points.add(count=6, scale=-10, zero_count=1, min=-2, max=1e9)
    point.negative.bucket_counts.append(2)
    point.positive.bucket_counts.extend((3,))
    assert Histogram((0.0, 1.0, math.inf), (3, 0, 3, 0), -2, 1e9) == read(request.SerializeToString())


def test_a_histogram_of_zeros_has_no_buckets(tmp_path: Path) -> None:
    """And every quantile is zero."""
    payload = encoded([0.0, 0.0])
    assert (2, []) == (message(payload).zero_count, list(message(payload).positive.bucket_counts))
    assert 0.0 == read(payload).quantile(0.9)
