"""What a Collector loses is told: by its own metrics, by the doctor, and in Prometheus as the rules read it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from tests.backend.otlp import HOUR_S, metrics, send, span, traces
from tests.backend.test_tiers import Site, agent, gateway, site
from tests.backends import Collector, collector, jaeger, prometheus
from tests.sink import Answer, sink
from tests.waiting import wait_for

pytestmark = pytest.mark.backend

__all__ = ["site"]


def doctor(asked: Collector) -> tuple[int, str]:
    """Run ``otel-rl doctor`` as one who sends to a Collector: its exit code and what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "otel_rl", "doctor"],
        env={
            **os.environ,
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{asked.grpc}",
            "OTEL_RL_OWN": asked.environment["OTEL_RL_OWN"],
            "COLUMNS": "200",
        },
        check=False,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout


def test_a_wrong_token_is_told(site: Site, tmp_path: Path) -> None:
    """The one answer for which an agent drops what it has: the doctor says how many spans that were, and why."""
    wrong = tmp_path / "wrong"
    wrong.write_text("wrong")
    with (
        jaeger(tmp_path) as store,
        gateway(tmp_path / "gw", site, "token", OTEL_RL_JAEGER=store.otlp) as central,
        agent(tmp_path / "agent", site, "token", to=central.grpc, OTEL_RL_TOKEN_FILE=str(wrong)) as local,
    ):
        assert "OK" == send(local.grpc, "traces", traces(*(span(7, number) for number in range(1, 22))))
        lost = {"exporter": "load_balancing/traces", "error_type": "Unauthenticated", "error_permanent": "true"}
        assert wait_for(lambda: 21 == local.counted("otelcol_exporter_send_failed_spans", **lost))
        code, said = doctor(local)
        assert 1 == code
        assert "21 by load_balancing/traces: Unauthenticated" in said
        assert "Nothing is wrong" not in said


def test_an_outage_is_no_loss(tmp_path: Path) -> None:
    """Prometheus was away, and its Collector said `try later`: that is counted, and nothing is wrong with it."""
    with prometheus(tmp_path) as store, sink("grpc") as taken, collector(
        tmp_path / "collector", OTEL_RL_PROMETHEUS=store.url, OTEL_RL_JAEGER=taken.endpoint.removeprefix("http://")
    ) as found:  # fmt: skip
        store.kill()
        assert "UNAVAILABLE" == send(found.grpc, "metrics", metrics("rl.step.time", (0, 1, 2.5)))
        store.start()
        _, said = doctor(found)
        assert "has lost nothing since it started" in said
        assert "points put off" in said
        assert "OK" == send(found.grpc, "metrics", metrics("rl.step.time", (0, 25 * HOUR_S, 1.0), (1, 1, 2.0)))
        code, said = doctor(found)
        assert (1, True) == (code, "1 by filter/too_old" in said)
        assert "has lost nothing" not in said


def test_failures_are_in_prometheus_as_the_rules_read_them(tmp_path: Path) -> None:
    """A store that takes no request at all is a loss for good; the Collector's own count of it is stored."""
    asked = 'otelcol_exporter_send_failed_spans_total{error_permanent="true", exporter="otlp_grpc/jaeger"}'
    with prometheus(tmp_path) as store, sink("grpc") as refusing, collector(
        tmp_path / "collector", OTEL_RL_PROMETHEUS=store.url, OTEL_RL_JAEGER=refusing.endpoint.removeprefix("http://")
    ) as found:  # fmt: skip
        refusing.answer = lambda signal, payload: Answer(code=grpc.StatusCode.INVALID_ARGUMENT)
        assert "OK" == send(found.grpc, "traces", traces(span(7, 1), span(7, 2)))
        (series,) = wait_for(lambda: store.query(asked))
        labels = {name: series["metric"][name] for name in ("job", "host_name", "exporter", "error_type")}
        expected = {"job": "otelcol-standalone", "host_name": socket.gethostname()}
        assert ("2", {**expected, "exporter": "otlp_grpc/jaeger", "error_type": "InvalidArgument"}) == (
            series["value"][1],
            labels,
        )
        assert store.query('otelcol_receiver_refused_spans_total{receiver="otlp"}')
