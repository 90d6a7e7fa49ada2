"""Spans, points and log records of every size arrive through every shipped configuration, or their sender is told."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
import yaml

from otel_rl.journal.otlp.encode import SpanEncoder
from otel_rl.journal.read import open_run
from otel_rl.vocabulary import RANK
from tests.backend.otlp import logs, metrics, send, span, traces
from tests.backend.stored import journaled
from tests.backend.test_tiers import Site, agent, gateway, site
from tests.backends import CONFIGURATIONS, Backend, Collector, collector, jaeger, prometheus
from tests.made_runs import FakeSpan
from tests.sink import Rank, sink
from tests.waiting import wait_for

pytestmark = pytest.mark.backend

__all__ = ["site"]
WAYS = ("standalone", "token")
LETTERS = "abcdefghijklmnop "
MEGABYTE = 1_000_000
FAILED = "otelcol_exporter_send_failed_"
_numbers = count(1)
LIVE = """
import random, sys, otel_rl
otel_rl.instrument()
draw = random.Random(0)
for number in range(1, int(sys.argv[1]) + 1):
    with otel_rl.step(number):
        for _ in range(10):
            with otel_rl.stage("env", batch_size=1) as span:
                for k in range(int(sys.argv[2])):
                    span.set_attribute(f"env.state{k}", "".join(draw.choices("abcdefghijklmnop ", k=2000)))
"""


@contextmanager
def way(name: str, folder: Path, site: Site, *, to: str = "", **environment: str) -> Iterator[list[Collector]]:
    """The Collectors of a shipped configuration, the one that takes records first."""
    environment |= {"OTEL_RL_JAEGER": to} if to else {}
    if name == "standalone":
        with collector(folder / "standalone", **environment) as found:
            yield [found]
        return
    with (
        gateway(folder / "gateway", site, name, **environment) as central,
        agent(folder / "agent", site, name, to=central.grpc) as local,
    ):
        yield [local, central]


def texts(kilobytes: float) -> Iterator[str]:
    """Texts of a size that no two are alike of, so that compression does not make them small."""
    draw = random.Random(1)
    text = "".join(draw.choices(LETTERS, k=200_000))
    size = round(kilobytes * 1000)
    while True:
        start = draw.randrange(100_000)
        yield (text[start:] + text[:start])[:size] if size < len(text) else (text * (size // len(text) + 1))[:size]


def journal(directory: Path, kilobytes: float, megabytes: int) -> dict[str, int]:
    """Journal spans as a training process that is gone; how many there are in each trace."""
    rank, text = Rank(directory), texts(kilobytes)
    rank.encoder = SpanEncoder({RANK: 0}, "1.0", max_text=MEGABYTE)  # by default a text is cut after 2,048
    number = round(megabytes * 1000 / max(kilobytes, 3))
    now = time.time_ns()
    found: dict[str, int] = {}
    in_trace = round(500 / max(kilobytes, 1))  # what a trace has beyond its share is not sent
    for first in range(0, number, in_trace):
        trace = next(_numbers)
        made = [
            FakeSpan("work", trace, next(_numbers), 1, now - 1000, now, {"rl.state": next(text), "n": n})
            for n in range(first, min(first + in_trace, number))
        ]
        rank.append(rank.encoder.encode(made))
        found[f"{trace:032x}"] = len(made)
    assert number == sum(found.values()) == len(rank.spans)
    assert min(map(len, rank.spans.values())) > kilobytes * 1000
    return found


def ship(directory: Path, to: str, protocol: str = "grpc") -> str:
    """Run ``otel-rl ship`` until all is sent; what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "otel_rl", "ship", str(directory)],
        env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": to, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol},
        check=False,
        capture_output=True,
        text=True,
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout


def failed(collectors: list[Collector]) -> float:
    """How many records they could not hand on, for good."""
    return sum(each.counted(FAILED, error_permanent="true") for each in collectors)


@pytest.mark.parametrize(
    ("name", "kilobytes"),
    [("standalone", 0.3), ("token", 0.3), ("token", 4.6), ("token", 100)],
)
def test_a_backlog_of_every_size_arrives(name: str, kilobytes: float, site: Site, tmp_path: Path) -> None:
    """What lies in a journal is sent by ``otel-rl ship``; as many spans are in the real Jaeger."""
    expected = journal(tmp_path / "run", kilobytes, 16)
    with jaeger(tmp_path) as store, way(name, tmp_path, site, to=store.otlp) as found:
        said = ship(tmp_path / "run", f"http://{found[0].grpc}")
        assert f"traces: {sum(expected.values())} shipped\n" == said
        for trace_id, number in expected.items():
            assert wait_for(lambda: number == len(store.trace(trace_id))), trace_id  # noqa: B023
        assert 0 == failed(found)


@pytest.mark.parametrize(("name", "kilobytes"), [("token", 100)])
def test_a_backlog_fits_a_store_that_takes_four_mebibytes(
    name: str, kilobytes: float, site: Site, tmp_path: Path
) -> None:
    """A store of somebody else takes what gRPC servers take unless they are told otherwise."""
    expected = journal(tmp_path / "run", kilobytes, 16)
    with sink("grpc") as store, way(name, tmp_path, site, to=store.endpoint.removeprefix("http://")) as found:
        ship(tmp_path / "run", f"http://{found[0].grpc}")
        assert wait_for(lambda: sum(expected.values()) == len(set(store.ids())))
        assert 0 == failed(found)


def test_a_backlog_arrives_by_http(site: Site, tmp_path: Path) -> None:
    """The same by the other protocol of the standalone Collector."""
    expected = journal(tmp_path / "run", 12, 16)
    with sink("grpc") as store, way("standalone", tmp_path, site, to=store.endpoint.removeprefix("http://")) as found:
        ship(tmp_path / "run", found[0].http, "http/protobuf")
        assert wait_for(lambda: sum(expected.values()) == len(set(store.ids())))


@pytest.mark.parametrize("name", WAYS)
def test_one_large_span_takes_no_other_with_it(name: str, site: Site, tmp_path: Path) -> None:
    """One of 9 MB arrives with its neighbours: where one span does not fit a batch, the rest of its request is lost."""
    with jaeger(tmp_path) as store, way(name, tmp_path, site, to=store.otlp) as found:
        for first in range(1, 400, 40):
            small = [span(7, number, rl_state=next(texts(4.6))) for number in range(first, first + 40)]
            large = [span(7, 1000 + first, rl_state=next(texts(9000)))] if first in (41, 201) else []
            assert "OK" == send(found[0].grpc, "traces", traces(*small[:20], *large, *small[20:]))
        assert wait_for(lambda: 402 == len(store.trace(f"{7:032x}")))
        assert 0 == failed(found)


@pytest.mark.parametrize("name", WAYS)
def test_a_span_that_no_hop_takes_is_refused_at_the_first(name: str, site: Site, tmp_path: Path) -> None:
    """One of 17 MB: its sender is told, and nothing waits for ever."""
    with jaeger(tmp_path) as store, way(name, tmp_path, site, to=store.otlp) as found:
        request = traces(span(7, 1), span(7, 2, rl_state=next(texts(17_000))))
        assert "RESOURCE_EXHAUSTED" == send(found[0].grpc, "traces", request)
        post = urllib.request.Request(f"{found[0].http}/v1/traces", request.SerializeToString())
        post.add_header("Content-Type", "application/x-protobuf")
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(post)
        assert "OK" == send(found[0].grpc, "traces", traces(span(7, 3)))
        assert wait_for(lambda: [f"{3:016x}"] == [each["spanId"] for each in store.trace(f"{7:032x}")])


@pytest.mark.parametrize("name", WAYS)
def test_large_requests_of_points_arrive(name: str, site: Site, tmp_path: Path) -> None:
    """40,000 points in one request, about 9 MB, are in the real Prometheus, and large log records arrive, too."""
    with (
        prometheus(tmp_path) as store,
        sink("http") as taken,
        way(
            name, tmp_path, site,
            OTEL_RL_PROMETHEUS=store.url, OTEL_RL_LOGS=taken.endpoint, OTEL_RL_LOGS_TO="[otlp_http/logs]",
        ) as found,
    ):  # fmt: skip
        request = metrics("rl.step.time", *((rank, 1, 1.0) for rank in range(40_000)))
        assert 8 * MEGABYTE < request.ByteSize()
        assert "OK" == send(found[0].grpc, "metrics", request)
        assert wait_for(lambda: ["40000"] == [row["value"][1] for row in store.query("count(rl_step_time_seconds)")])
        for _ in range(40):
            assert "OK" == send(found[0].grpc, "logs", logs({"rl.state": next(texts(300))}))
        assert wait_for(lambda: 40 == len(taken.taken("logs")))
        assert 0 == failed(found)


@pytest.mark.parametrize("name", ["standalone", "token"])
def test_a_queue_of_large_spans_outlives_its_collector(name: str, site: Site, tmp_path: Path) -> None:
    """Spans of 100 KB wait while nobody takes them; killed and started again, the Collector hands on every one."""
    with jaeger(tmp_path) as store, way(name, tmp_path, site, to=store.otlp) as found:
        behind: Backend = store if name == "standalone" else found[1]
        behind.kill()
        for first in range(1, 121, 20):
            large = (span(7, number, rl_state=next(texts(100))) for number in range(first, first + 20))
            assert "OK" == send(found[0].grpc, "traces", traces(*large))
        found[0].kill()
        behind.start()
        found[0].start()
        assert wait_for(lambda: 120 == len(store.trace(f"{7:032x}"))), len(store.trace(f"{7:032x}"))
        assert 0 == failed(found)


@pytest.mark.parametrize("name", ["standalone", "agent"])
def test_a_queue_is_full_by_bytes(name: str, site: Site, tmp_path: Path) -> None:
    """So many bytes, not spans, wait on the disk; then the sender keeps them: it is told to try later."""
    configuration = yaml.safe_load((CONFIGURATIONS / f"{name}.yaml").read_text())
    exporter = "otlp_grpc/jaeger" if name == "standalone" else "load_balancing/traces"
    queue = configuration["exporters"][exporter]["sending_queue"]
    assert ("bytes", 1000 * MEGABYTE) == (queue["sizer"], queue["queue_size"])
    queue["queue_size"] = 10 * MEGABYTE
    small = tmp_path / "small.yaml"
    small.write_text(yaml.safe_dump(configuration))
    with (
        collector(tmp_path, small, OTEL_RL_JAEGER="127.0.0.1:9")
        if name == "standalone"
        else agent(tmp_path, site, "token", to="127.0.0.1:9", configuration=str(small))
    ) as found:
        request = traces(*(span(7, number, rl_state=next(texts(100))) for number in range(1, 11)))
        answers = [send(found.grpc, "traces", request) for _ in range(15)]
        assert ["OK"] * 9 == answers[:9]
        assert {"UNAVAILABLE"} == set(answers[10:])
        found.kill()
        found.start()
        assert "UNAVAILABLE" == [send(found.grpc, "traces", request) for _ in range(2)][1]


def test_large_spans_of_a_run_arrive(site: Site, tmp_path: Path) -> None:
    """Stages of 12 KB by the program's own sidecar, agent and gateway: what the journal has, Jaeger has."""
    (tmp_path / "live.py").write_text(LIVE)
    with jaeger(tmp_path) as store, way("token", tmp_path, site, to=store.otlp) as found:
        to = f"http://{found[0].grpc}"
        environ = {"OTEL_RL_DIR": str(tmp_path / "runs"), "OTEL_RL_RUN_ID": "live", "OTEL_EXPORTER_OTLP_ENDPOINT": to}
        done = subprocess.run(
            [sys.executable, str(tmp_path / "live.py"), "100", "6"],
            env={**os.environ, **environ, "OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"},
            check=False,
        )
        assert 0 == done.returncode
        expected = {trace: len(spans) for trace, spans in journaled(open_run(tmp_path / "runs" / "live")).items()}
        assert 1000 < sum(expected.values())
        for trace_id, number in expected.items():
            assert wait_for(lambda: number == len(store.trace(trace_id))), trace_id  # noqa: B023
        assert 0 == failed(found)
