"""What the user's program or server gets of a stall, and what is said if it does not take it."""

from __future__ import annotations

import json
import shlex
import socket
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from otel_rl.guard import errors
from otel_rl.stalls import on_stall
from otel_rl.stalls.on_stall import StallHook
from tests.waiting import wait_for

STALL = {"event": "rl.stall", "rl.stall.rank": 3, "rl.stall.chain": "Rank 3 is stuck \u2026"}
SECRET = "hunter2"


class Server(ThreadingHTTPServer):
    """Answers each request with the next status, the last one for ever; 0: it does not answer."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.statuses = [200]
        self.got: list[tuple[str, str | None, Any]] = []
        self.ended = Event()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook?token={SECRET}"


class Handler(BaseHTTPRequestHandler):
    """Keeps what is posted."""

    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, self.headers["Content-Type"], json.loads(body)))
        status = self.server.statuses.pop(0) if len(self.server.statuses) > 1 else self.server.statuses[0]
        if not status:
            self.server.ended.wait(60)
        self.send_response(status or 200)
        self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server that works, and no pauses between tries."""
    monkeypatch.setattr(on_stall, "PAUSES_S", (0.01, 0.01))
    with Server() as made:
        Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        yield made
        made.ended.set()
        made.shutdown()


def call(target: str) -> list[str]:
    """Tell of the stall, wait for the end, and return what was said."""
    said: list[str] = []
    thread = StallHook(target, said.append).call(STALL)
    assert thread is not None
    thread.join(60)
    assert not thread.is_alive()
    return said


@pytest.mark.parametrize(
    ("statuses", "tries", "problem"),
    [
        ([200], 1, ""),
        ([204], 1, ""),
        ([503, 503, 200], 3, ""),
        ([429, 200], 2, ""),
        ([503], 3, "HTTP 503"),
        ([404], 1, "HTTP 404"),
        ([401], 1, "HTTP 401"),
    ],
)
def test_a_server_gets_it(server: Server, statuses: list[int], tries: int, problem: str) -> None:
    """Again while it is in trouble, at most three times; a refusal is final. The address is not said."""
    server.statuses = statuses
    said = call(server.address)
    expected = [f"OTEL_RL_ON_STALL: 127.0.0.1 did not take the message ({problem})"] if problem else []
    assert (expected, [(f"/hook?token={SECRET}", "application/json", STALL)] * tries) == (said, server.got)


def test_a_server_that_hangs_costs_its_time_out(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller does not wait for it."""
    monkeypatch.setattr(on_stall, "TIMEOUT_S", 2.0)
    server.statuses = [0]
    said: list[str] = []
    thread = StallHook(server.address, said.append).call(STALL)
    assert ([], True) == (said, thread is not None and thread.daemon), "the caller has waited"
    assert thread is not None
    thread.join()
    assert ["OTEL_RL_ON_STALL: 127.0.0.1 did not take the message (TimeoutError)"] == said
    assert wait_for(lambda: 3 == len(server.got))  # it may read a request when nobody waits any more


def test_a_server_that_is_not_there(server: Server) -> None:
    """Its name is said, and nothing of what follows it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}/{SECRET}"
        assert ["OTEL_RL_ON_STALL: 127.0.0.1 did not take the message (URLError)"] == call(address)


@pytest.mark.parametrize("address", [f"http://user:{SECRET}@127.0.0.1/", f"http://127.0.0.1/{SECRET} x"])
def test_an_address_that_cannot_be_is_not_said_either(
    server: Server, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The error of Python would quote it."""
    assert ["OTEL_RL_ON_STALL: 127.0.0.1 did not take the message (InvalidURL)"] == call(address)
    assert ("", {}) == (caplog.text, dict(errors))


def command(program: str, *arguments: str) -> str:
    """Return a command that runs a program of Python."""
    return shlex.join([sys.executable, "-c", program, *arguments])


def test_a_command_gets_it_on_its_standard_input(tmp_path: Path) -> None:
    """Its own output goes nowhere."""
    got = tmp_path / "got.json"
    program = "import sys; print('hello', file=sys.stderr); open(sys.argv[1], 'w').write(sys.stdin.read())"
    assert ([], STALL) == (call(command(program, str(got))), json.loads(got.read_text()))


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("raise SystemExit(3)", "OTEL_RL_ON_STALL: the command exited with code 3"),
        ("import os; os.kill(os.getpid(), 9)", "OTEL_RL_ON_STALL: the command exited with code -9"),
    ],
)
def test_a_command_that_fails_is_said(program: str, expected: str) -> None:
    """It may have read nothing."""
    assert [expected] == call(command(program))


def test_a_command_that_hangs_is_killed_with_what_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in a session of its own."""
    monkeypatch.setattr(on_stall, "COMMAND_S", 1.0)
    pid = tmp_path / "pid"
    program = shlex.join(["sh", "-c", 'sleep 600 & echo $! > "$0"; sleep 600', str(pid)])  # a Python may need a second
    assert ["OTEL_RL_ON_STALL: the command took longer than 1 s and was killed"] == call(program)
    assert wait_for(lambda: is_gone(int(pid.read_text())))


def is_gone(pid: int) -> bool:
    """Return whether a process has ended; one that nobody waited for counts as ended."""
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text("ascii")
    except OSError:
        return True


@pytest.mark.guarded
@pytest.mark.parametrize("target", ["/nowhere/program", "'"])
def test_a_command_that_is_none_is_an_error_of_ours(target: str) -> None:
    """It is counted and logged once, and nothing else happens."""
    assert ([], {"call OTEL_RL_ON_STALL": 1}) == (call(target), dict(errors))


def test_without_a_target_nothing_is_called() -> None:
    """No thread is started."""
    hook = StallHook("", print)
    assert hook.call(STALL) is None
