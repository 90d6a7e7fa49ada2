"""The page of series against a real Prometheus: one point of every metric goes through the standalone Collector."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from otel_rl import vocabulary as v
from otel_rl.catalogue import prometheus as page
from otel_rl.catalogue.areas import AREAS
from otel_rl.catalogue.series_names import all_series, emitted, label_name, series_of
from otel_rl.journal.otlp.encode import SpanEncoder
from otel_rl.metrics.record import Fold
from otel_rl.records import MetricPoints, Point
from tests.backends import Collector, Prometheus, collector, prometheus
from tests.waiting import wait_for

pytestmark = pytest.mark.backend

RESOURCE: dict[str, Any] = {key: "a" for key, row in v.ATTRIBUTES.items() if row.where == "resource"}
OF_PROMETHEUS = {"__name__", "job", "instance"}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has one point of every metric, with every attribute that it may have."""
    folder = tmp_path_factory.mktemp("names")
    with prometheus(folder) as store, collector(folder, OTEL_RL_PROMETHEUS=store.url) as found:
        post(found, RESOURCE, every_metric())
        assert wait_for(lambda: store.query(f'{{{label_name(v.RUN_ID)}="a"}}'))
        yield store


def every_metric() -> list[MetricPoints]:
    """A point of each, as the flusher makes them."""
    now_ns = time.time_ns()
    fold = Fold(now_ns - 10**9)
    rows = emitted()
    for area in AREAS:
        for name in area.attributes:
            labels = tuple((key, "a") for key in area.keys(name))
            if rows[name].kind == "gauge":
                fold.point(Point(name, 1.0, now_ns, labels))
            elif rows[name].kind == "counter":
                fold.count(name, 1, labels)
            else:
                fold.durations(name, [1.0], labels)
    return fold.drain(now_ns)


def post(found: Collector, resource: dict[str, Any], points: Iterable[MetricPoints]) -> None:
    """Send points to a Collector by HTTP."""
    for request in SpanEncoder(resource, "1.0").encode_metrics(points):
        sent = urllib.request.Request(f"{found.http}/v1/metrics", request.payload)
        sent.add_header("Content-Type", "application/x-protobuf")
        urllib.request.urlopen(sent).close()


def test_every_series_has_the_name_on_the_page(stored: Prometheus) -> None:
    """All of them, and no other."""
    found = stored.query(f'group by (__name__) ({{{label_name(v.RUN_ID)}="a", __name__!="target_info"}})')
    assert all_series() == {series["metric"]["__name__"] for series in found}


def test_every_series_has_the_labels_on_the_page(stored: Prometheus) -> None:
    """Those of the process, those of the metric, and what Prometheus adds."""
    rows = emitted()
    of_process = OF_PROMETHEUS | {label_name(key) for key in page.promoted() if key in RESOURCE}
    expected = {
        name: of_process
        | {label_name(key) for key in area.keys(metric)}
        | ({"le"} if name.endswith("_bucket") else set())
        for area in AREAS
        for metric in area.attributes
        for name in series_of(rows[metric])
    }
    found = stored.query(f'{{{label_name(v.RUN_ID)}="a", __name__!="target_info"}}')
    assert expected == {series["metric"]["__name__"]: set(series["metric"]) for series in found}
