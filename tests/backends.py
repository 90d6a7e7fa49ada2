"""The real Collector, Jaeger, Prometheus and Tempo on free ports of loopback, with this repository's configurations.

A program is taken from the PATH, from the folder ``OTEL_RL_BACKENDS`` or from where ``scripts/backends`` put it. Tempo,
which is not built, is the program that ``OTEL_RL_TEMPO_PROGRAM`` names or the ``tempo`` on PATH. A test is skipped
where the program that it needs is not there.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from tests.waiting import wait_for

ROOT = Path(__file__).parents[1]
CONFIGURATIONS = ROOT / "collector"
NAMED = os.environ.get("OTEL_RL_BACKENDS")  # here, because every test begins without OTEL_* variables
TEMPO = os.environ.get("OTEL_RL_TEMPO_PROGRAM")
NO_TEMPO = "no tempo here: put one on PATH, or name it in OTEL_RL_TEMPO_PROGRAM"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "otel_rl" / "backends"
PASSED_ON = ("PATH", "HOME", "TMPDIR")


def find(name: str) -> Path | None:
    """Return where a program is; of several builds in the cache the newest."""
    if name == "tempo":
        return Path(path) if (path := shutil.which(TEMPO or name)) else None
    built = sorted(CACHE.glob(f"*/bin/{name}"), key=lambda path: path.stat().st_mtime, reverse=True)
    candidates = [shutil.which(name), *([f"{NAMED}/{name}"] if NAMED else []), *built]
    return next((Path(path) for path in candidates if path and os.access(path, os.X_OK)), None)


def need(name: str) -> Path:
    """Return where a program is; skip the test where it is not."""
    path = find(name)
    if path is None:
        pytest.skip(NO_TEMPO if name == "tempo" else f"no {name} here: scripts/backends builds it")
    return path


def free_ports(num: int) -> list[int]:
    """Ports of loopback that nobody listened on a moment ago, all different."""
    sockets = [socket.socket() for _ in range(num)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def get(url: str, timeout_s: float | None = None) -> Any:
    """GET a URL.

    Returns:
        The JSON that came back, its text where it is none, None where nothing answered with 200.
    """
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as response:
            content = response.read().decode()
    except (urllib.error.URLError, OSError):
        return None
    with suppress(ValueError):
        return json.loads(content)
    return content


@dataclass
class Backend:
    """A program that can be started, stopped, killed and started again on the same ports."""

    command: Sequence[str | Path]
    environment: Mapping[str, str]
    health: str
    """A URL that answers once the program works."""
    folder: Path
    """Where it works and writes ``<program>.log``."""
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def log(self) -> str:
        """What it wrote so far."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self.process is not None
        return self.process.pid

    @property
    def _log(self) -> Path:
        return self.folder / f"{Path(self.command[0]).name}.log"

    def start(self) -> None:
        """Start it and wait until it works; fail with its last words where it does not."""
        inherited = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [str(part) for part in self.command],
                env={**inherited, **self.environment},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        if not wait_for(lambda: self.process.poll() is not None or get(self.health, 1.0) is not None):
            self.kill()
        if self.process.poll() is not None:
            pytest.fail(f"{self.command[0]} did not start: {self.log[-3000:]}")

    def stop(self) -> None:
        """End it as its operator would, and kill it after 15 s."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it without a warning."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


class Jaeger(Backend):
    """Jaeger, in memory."""

    otlp: str
    """Address that takes OTLP by gRPC, ``127.0.0.1:<port>``."""
    url: str
    """Of the page and the API."""

    def trace(self, trace_id: str) -> list[dict[str, Any]]:
        """The spans of a trace as OTLP JSON, each with its resource under ``resource``; empty where there is none."""
        answer = get(f"{self.url}/api/v3/traces/{trace_id}")
        parts = answer["result"]["resourceSpans"] if answer else []
        return [
            {**span, "resource": part.get("resource", {})}
            for part in parts
            for scope in part["scopeSpans"]
            for span in scope.get("spans", [])  # none yet while Jaeger takes them
        ]


class Tempo(Backend):
    """Tempo, with its blocks on disk."""

    otlp: str
    """Address that takes OTLP by gRPC, ``127.0.0.1:<port>``."""
    url: str

    def trace(self, trace_id: str) -> list[dict[str, Any]]:
        """The spans of a trace as OTLP JSON, each with its resource under ``resource``; empty where there is none."""
        answer = get(f"{self.url}/api/v2/traces/{trace_id}")
        parts = answer["trace"].get("resourceSpans", []) if answer else []
        return [
            {**_as_otlp(span), "links": [*map(_as_otlp, span.get("links", []))], "resource": part.get("resource", {})}
            for part in parts
            for scope in part["scopeSpans"]
            for span in scope["spans"]
        ]

    def stop(self) -> None:
        """Kill it: after SIGTERM it takes minutes, and holds its ports."""
        self.kill()


def _as_otlp(found: dict[str, Any]) -> dict[str, Any]:
    """A span or link as OTLP JSON has it: as protobuf's JSON, Tempo writes ids in base64 and a status by its name."""
    ids = {key: base64.b64decode(found[key]).hex() for key in ("traceId", "spanId", "parentSpanId") if key in found}
    code = found.get("status", {}).get("code", "STATUS_CODE_UNSET")
    return {**found, **ids, "status": {"code": Status.StatusCode.Value(code)}}


class Prometheus(Backend):
    """Prometheus."""

    url: str

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an instant query; empty where there is none."""
        answer = get(f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
        return answer["data"]["result"] if answer else []

    def exemplars(self, expression: str) -> list[dict[str, Any]]:
        """The series of the last hour that have exemplars, with them."""
        now = time.time()
        asked = {"query": expression, "start": now - 3600, "end": now + 60}
        answer = get(f"{self.url}/api/v1/query_exemplars?{urllib.parse.urlencode(asked)}")
        return answer["data"] if answer else []


class Collector(Backend):
    """A Collector."""

    grpc: str
    """Address that takes OTLP by gRPC, ``127.0.0.1:<port>``."""
    http: str
    own: str
    """URL of its own metrics."""

    def counted(self, name: str, **labels: str) -> float:
        """The sum of a counter of its own over the series that have these labels."""
        total = 0.0
        for line in str(get(self.own) or "").splitlines():
            series, _, value = line.rpartition(" ")
            if series.startswith(name) and all(f'{key}="{label}"' in series for key, label in labels.items()):
                total += float(value)
        return total


@contextmanager
def jaeger(folder: Path, configuration: Path = CONFIGURATIONS / "jaeger.yaml") -> Iterator[Jaeger]:
    """A Jaeger with the shipped configuration, or another, until the block ends."""
    otlp, page, query, health, own = free_ports(5)
    found = Jaeger(
        [need("jaeger"), "--config", configuration],
        {
            "OTEL_RL_JAEGER_OTLP": f"127.0.0.1:{otlp}",
            "OTEL_RL_JAEGER_UI": f"127.0.0.1:{page}",
            "OTEL_RL_JAEGER_QUERY": f"127.0.0.1:{query}",
            "OTEL_RL_JAEGER_HEALTH": f"127.0.0.1:{health}",
            "OTEL_RL_JAEGER_OWN": str(own),
        },
        f"http://127.0.0.1:{health}/status",
        folder,
    )
    found.otlp, found.url = f"127.0.0.1:{otlp}", f"http://127.0.0.1:{page}"
    with _running(found):
        yield found


@contextmanager
def tempo(folder: Path) -> Iterator[Tempo]:
    """A Tempo with the shipped configuration until the block ends."""
    otlp, page, grpc, gossip = free_ports(4)
    found = Tempo(
        [
            need("tempo"),
            f"-config.file={CONFIGURATIONS / 'tempo.yaml'}",
            "-config.expand-env=true",
            f"-memberlist.bind-port={gossip}",
        ],
        {
            "OTEL_RL_STACK_DIR": str(folder),
            "OTEL_RL_TEMPO_OTLP": f"127.0.0.1:{otlp}",
            "OTEL_RL_TEMPO_HOST": "127.0.0.1",
            "OTEL_RL_TEMPO_PORT": str(page),
            "OTEL_RL_TEMPO_GRPC_PORT": str(grpc),
        },
        f"http://127.0.0.1:{page}/ready",
        folder,
    )
    found.otlp, found.url = f"127.0.0.1:{otlp}", f"http://127.0.0.1:{page}"
    with _running(found):
        yield found


@contextmanager
def prometheus(folder: Path, configuration: Path = CONFIGURATIONS / "prometheus.yaml") -> Iterator[Prometheus]:
    """A Prometheus with the shipped configuration, or another one, until the block ends."""
    (port,) = free_ports(1)
    found = Prometheus(
        [
            need("prometheus"),
            f"--config.file={configuration}",
            f"--storage.tsdb.path={folder / 'prometheus'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--web.enable-otlp-receiver",
            "--enable-feature=exemplar-storage,native-histograms",
        ],
        {},
        f"http://127.0.0.1:{port}/-/ready",
        folder,
    )
    found.url = f"http://127.0.0.1:{port}"
    with _running(found):
        yield found


@contextmanager
def collector(folder: Path, *configurations: str | Path, **environment: str) -> Iterator[Collector]:
    """A Collector until the block ends.

    Args:
        folder: where it works and keeps its queue.
        configurations: names in ``collector/`` or other files; ``standalone.yaml`` where there is none.
        environment: variables of the configurations, over free ports of loopback and ``folder``; ``health`` is the URL
            that answers, where it is another one.
    """
    grpc, http, health, own = free_ports(4)
    answers = environment.pop("health", f"http://127.0.0.1:{health}/")
    names = configurations or ("standalone.yaml",)
    found = Collector(
        [need("otelcol"), *(part for name in names for part in ("--config", CONFIGURATIONS / name))],
        {
            "OTEL_RL_STACK_DIR": str(folder),
            "OTEL_RL_QUEUE_DIR": str(folder),
            "OTEL_RL_GRPC": f"127.0.0.1:{grpc}",
            "OTEL_RL_HTTP": f"127.0.0.1:{http}",
            "OTEL_RL_HEALTH": f"127.0.0.1:{health}",
            "OTEL_RL_OWN": str(own),
            **environment,
        },
        answers,
        folder,
    )
    found.grpc, found.http, found.own = (
        f"127.0.0.1:{grpc}",
        f"http://127.0.0.1:{http}",
        f"http://127.0.0.1:{own}/metrics",
    )
    with _running(found):
        yield found


@contextmanager
def _running(backend: Backend) -> Iterator[None]:
    backend.folder.mkdir(parents=True, exist_ok=True)
    try:
        backend.start()
        yield
    finally:
        backend.stop()
