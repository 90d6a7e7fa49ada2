"""`otel-rl stack` with the real Collector, Jaeger, Prometheus, and Tempo where there is one."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psutil
import pytest

from otel_rl.stack.plan import PORTS
from otel_rl.stack.processes import used_ports
from otel_rl.stack.programs import find_all, missing
from tests.backend.otlp import metrics, send, span, traces
from tests.backends import NAMED, TEMPO, get
from tests.waiting import wait_for

pytestmark = pytest.mark.backend

TRACE = f"{7:032x}"
ODD = "rü ns:1 $NAME $$ ${env:HOME} \"#'%"
"""The name of a folder in which each character means something to a program, or to its configuration. No variable of
that name is set: OTEL_RL_DIR would be another one."""


class Stack:
    """The command, with a root of runs and ports of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.offset = next(
            offset
            for offset in iter(lambda: random.randrange(1, 7000), None)
            if not used_ports(port + offset for port in PORTS.values())
        )

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Type `otel-rl stack ...`."""
        return subprocess.run(
            [sys.executable, "-m", "otel_rl", "stack", *words, "--dir", str(self.root)],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "COLUMNS": "200"},
            capture_output=True,
            text=True,
            check=False,
        )

    def up(self) -> subprocess.CompletedProcess[str]:
        """Type `otel-rl stack up` with free ports."""
        return self("up", "--port-offset", str(self.offset))

    def port(self, name: str) -> int:
        """Where it listens."""
        return PORTS[name] + self.offset

    @property
    def processes(self) -> list[psutil.Process]:
        """List the processes that work with this root."""
        folder = str(self.root / ".stack")
        return [
            each
            for each in psutil.process_iter(["name", "status", "cwd"])
            if each.info["cwd"] == folder and each.info["status"] != psutil.STATUS_ZOMBIE
        ]

    @property
    def living(self) -> list[str]:
        """Name the programs that run with this root."""
        return sorted(each.info["name"] for each in self.processes)

    def series(self, query: str) -> list[dict[str, str]]:
        """Ask Prometheus; give the labels of what it found."""
        answer = get(f"http://127.0.0.1:{self.port('prometheus')}/api/v1/query?{urlencode({'query': query})}")
        return [row["metric"] for row in answer["data"]["result"]] if answer else []

    def spans(self, trace_id: str) -> list[str]:
        """Ask Jaeger for a trace; give the names of its spans."""
        answer = get(f"http://127.0.0.1:{self.port('jaeger')}/api/v3/traces/{trace_id}")
        return self._names(answer["result"] if answer else {})

    def spans_in_tempo(self, trace_id: str) -> list[str]:
        """Ask Tempo for a trace; give the names of its spans."""
        answer = get(f"http://127.0.0.1:{self.port('tempo')}/api/v2/traces/{trace_id}")
        return self._names(answer["trace"] if answer else {})

    @staticmethod
    def _names(trace: dict[str, Any]) -> list[str]:
        parts = trace.get("resourceSpans", [])
        return [span["name"] for part in parts for scope in part["scopeSpans"] for span in scope["spans"]]


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    """Give the command where the programs are; nothing is left running."""
    for variable, value in {"OTEL_RL_BACKENDS": NAMED, "OTEL_RL_TEMPO_PROGRAM": TEMPO}.items():
        if value:
            monkeypatch.setenv(variable, value)
    if names := missing(find_all()):
        pytest.skip(f"no {', '.join(names)} here: scripts/backends builds them")
    found = Stack(tmp_path / ODD)
    yield found
    found("down", "--delete")


def test_what_is_sent_to_the_stack_is_found_in_it(stack: Stack) -> None:
    """Up; a trace in Jaeger, a metric in Prometheus; down, and nothing is left but the data, which the next up has."""
    up = stack.up()
    assert (0, "") == (up.returncode, up.stderr)
    address = f"127.0.0.1:{stack.port('grpc')}"
    assert f"OTEL_EXPORTER_OTLP_ENDPOINT=http://{address} otel-rl run" in up.stdout
    assert "OK" == send(address, "traces", traces(span(7, 1), span(7, 2, parent_id=1)))
    assert "OK" == send(address, "metrics", metrics("rl.step.time", (3, 1, 2.5)))
    assert ["rl.loop", "rl.loop"] == wait_for(lambda: stack.spans(TRACE))
    has_tempo = "tempo" in find_all()
    assert not has_tempo or ["rl.loop", "rl.loop"] == wait_for(lambda: stack.spans_in_tempo(TRACE))
    query = "last_over_time(rl_step_time_seconds[1h])"
    assert ["3"] == [labels["rl_rank"] for labels in wait_for(lambda: stack.series(query))]

    status = wait_for(lambda: found if not (found := stack("status")).returncode else None) or stack("status")
    rows = {row.split()[0]: row.split()[1] for row in status.stdout.splitlines()[1:]}
    expected = dict.fromkeys(("jaeger", "prometheus", "collector", *(["tempo"] if has_tempo else [])), "answers")
    assert (0, expected) == (status.returncode, {name: rows[name] for name in expected}), status.stdout
    again = stack.up()
    assert (0, "The stack already runs.") == (again.returncode, again.stdout.splitlines()[0])

    down = stack("down")
    assert (0, [], 3) == (down.returncode, stack.living, stack("status").returncode), down.stderr
    assert [] == used_ports(port + stack.offset for port in PORTS.values())
    kept = {path.name for path in (stack.root / ".stack").iterdir() if path.is_dir()}
    assert ({stack.root}, {"configurations", "prometheus", "queue", *(["tempo"] if has_tempo else [])}) == (
        {*stack.root.parent.iterdir()},
        kept,
    )

    assert 0 == stack.up().returncode
    assert ["3"] == [labels["rl_rank"] for labels in stack.series(query)]
    assert (0, []) == (stack("down", "--delete").returncode, stack.living)
    assert [] == list(stack.root.iterdir())


def test_only_loopback_is_listened_on(stack: Stack) -> None:
    """By no part on any port, planned or not."""
    assert 0 == stack.up().returncode
    names = {*stack.living}
    listening = {
        (process.info["name"], connection.laddr.ip, connection.laddr.port)
        for process in stack.processes
        for connection in process.net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    planned = {port + stack.offset for name, port in PORTS.items() if not name.startswith("tempo")}
    assert ({"127.0.0.1"}, names) == ({ip for _, ip, _ in listening}, {name for name, _, _ in listening})
    assert set() == planned - {port for _, _, port in listening}
    if "tempo" not in names:
        assert planned == {port for _, _, port in listening}


def test_what_the_collector_says_when_it_cannot_start_is_shown(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own sentence is among the last lines; the others are ended."""
    monkeypatch.setenv("OTEL_RL_LOGS_TO", "[nowhere]")
    up = stack.up()
    assert (1, True, []) == (up.returncode, "collector ended right after it was started" in up.stderr, stack.living)
    assert '"nowhere"' in up.stderr, up.stderr
