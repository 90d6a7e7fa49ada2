"""What the doctor makes of the metrics that a Collector has of itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from otel_rl.cli.collector_own import collectors
from tests.backends import free_ports

FINE = """# HELP otelcol_exporter_sent_spans Number of spans successfully sent to destination. [Beta]
# TYPE otelcol_exporter_sent_spans counter
otelcol_exporter_sent_spans{exporter="otlp_grpc/jaeger"} 1e+09
otelcol_exporter_queue_size{data_type="traces",exporter="otlp_grpc/jaeger"} 0
otelcol_exporter_send_failed_spans{error_permanent="true",exporter="otlp_grpc/jaeger"} 0
otelcol_processor_filter_datapoints_filtered{filter="filter/too_old"} 0
otelcol_processor_filter_datapoints_filtered{filter="filter/of_the_site"} 7
"""
TROUBLE = """
otelcol_exporter_queue_size{data_type="traces",exporter="load_balancing/traces"} 2.5e+08
otelcol_exporter_queue_capacity{data_type="traces",exporter="load_balancing/traces"} 1e+09
otelcol_exporter_send_failed_spans_total{error_permanent="true",error_type="Unauthenticated",exporter="a"} 2404
otelcol_exporter_send_failed_spans_total{error_permanent="false",error_type="Unavailable",exporter="a"} 3
otelcol_exporter_send_failed_metric_points{exporter="b\\"}"} 5
otelcol_exporter_send_failed_log_records{error_permanent="true",error_type="_OTHER",exporter="c"} 1
otelcol_processor_filter_datapoints_filtered_total{filter="filter/too_old"} 12
otelcol_processor_filter_datapoints_filtered{filter="filter/not_storable"} 3
otelcol_process_uptime NaN
otelcol_exporter_queue_size
"""


@contextmanager
def served(text: str) -> Iterator[int]:
    """A server that answers so, and its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/metrics" else 404)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def asked(port: object, endpoint: str = "http://127.0.0.1:4317") -> list[tuple[str, str, str]]:
    """What the doctor finds there."""
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_RL_OWN": str(port)}
    return [(found.state, found.name, found.detail) for found in collectors(environ)]


def test_a_collector_that_lost_nothing() -> None:
    """One line says so, and of whom; a filter of the site's own is nobody's business."""
    with served(FINE) as port:
        expected = [("ok", "own metrics", f"the Collector at 127.0.0.1:{port} has lost nothing since it started")]
        assert sorted(expected) == sorted(asked(port))


def test_what_a_collector_lost() -> None:
    """By exporter and reason; what is sent again is only a note, and so is what waits."""
    expected = [
        ("wrong", "log records lost", "1 by c; its log says more"),
        ("wrong", "points lost", '5 by b\\"}; its metrics do not say whether they were sent again; its log says more'),
        ("wrong", "spans lost", "2,404 by a: Unauthenticated; its log says more"),
        ("note", "spans put off", "3 times by a: Unavailable; they are sent again"),
        ("wrong", "points dropped",
         "3 by filter/not_storable: delta, or without a name in ASCII; check the SDK that wrote them"),
        ("wrong", "points dropped",
         "12 by filter/too_old: older than 23 h or more than 9 min ahead; check the clocks"),
        ("note", "traces in its queue", "250,000,000 of 1,000,000,000, 25%, for load_balancing/traces"),
    ]  # fmt: skip
    with served(TROUBLE) as port:
        assert sorted(expected) == sorted(asked(port))


@pytest.mark.parametrize("text", ["", "<html>", "up 1\n"])
def test_who_answers_may_be_no_collector(text: str) -> None:
    """That is a note, as is nobody at all, a port that is none or a host that cannot be."""
    with served(text) as port:
        assert ["note"] == [state for state, _, _ in asked(port)]


@pytest.mark.parametrize(
    ("port", "endpoint"),
    [
        (None, "http://127.0.0.1:4317"),
        ("x", "http://127.0.0.1:4317"),
        (" ", f"http://{'h' * 300}"),
        (1, "http://[::1]"),
    ],
)
def test_a_collector_that_cannot_be_asked_is_no_fault(port: object, endpoint: str) -> None:
    """The doctor says where it asked."""
    (free,) = free_ports(1)
    assert ["note"] == [state for state, _, _ in asked(free if port is None else port, endpoint)]


def test_nobody_is_asked_where_nothing_is_sent() -> None:
    """Without an endpoint there is no host."""
    assert [] == collectors({})
