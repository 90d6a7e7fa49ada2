"""What the user's program or server gets of findings, and what is said if it does not take them."""

from __future__ import annotations

import hmac
import json
import resource
import shlex
import socket
import sys
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from otel_rl.config import Config, ConfigurationError
from otel_rl.guard import errors
from otel_rl.sidecar import finding_hook
from otel_rl.sidecar.finding_hook import FindingHook, slack_text
from tests.waiting import wait_for

FINDING = {"event": "rl.finding", "id": "nan-1", "state": "begun", "severity": "alarm", "sentence": "All is NaN \u2026"}
SECRET = "hunter2"
REDIRECTS = [301, 302, 303, 307, 308]


class Server(ThreadingHTTPServer):
    """Answers each request with the next status, the last one for ever; 0: it does not answer."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.statuses = [200]
        self.got: list[tuple[str, str | None, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.answers = 0
        """Bytes of an answer's body."""
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
        self.server.headers.append(
            {**{key.lower(): value for key, value in self.headers.items()}, "body": body.decode()}
        )
        status = self.server.statuses.pop(0) if len(self.server.statuses) > 1 else self.server.statuses[0]
        if not status:
            self.server.ended.wait(60)
        self.send_response(status or 200)
        if status in REDIRECTS:
            self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}/elsewhere")
        self.end_headers()
        with suppress(OSError):  # nobody reads it
            for _ in range(self.server.answers >> 20):
                self.wfile.write(bytes(1 << 20))

    def do_GET(self) -> None:
        self.server.got.append((self.path, None, "a redirect was followed"))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server that works, and no pauses between tries."""
    monkeypatch.setattr(finding_hook, "PAUSES_S", (0.01, 0.01))
    with Server() as made:
        Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        yield made
        made.ended.set()
        made.shutdown()


def hook(target: str, said: list[str], **settings: str) -> FindingHook:
    """Make the hook as a sidecar with these settings does."""
    environ = {"OTEL_RL_ON_FINDING": target} | {f"OTEL_RL_ON_FINDING_{key}": value for key, value in settings.items()}
    return FindingHook(Config.from_env(environ), said.append)


def call(target: str, **settings: str) -> list[str]:
    """Tell of the finding, wait for the end, and return what was said."""
    said: list[str] = []
    calls = hook(target, said, **settings)
    calls.call(FINDING)
    calls.close(60)
    assert calls.outcomes.total() == 1
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
    expected = [f"OTEL_RL_ON_FINDING: 127.0.0.1 did not take the message ({problem})"] if problem else []
    assert (expected, [(f"/hook?token={SECRET}", "application/json", FINDING)] * tries) == (said, server.got)


def test_a_server_that_hangs_costs_its_time_out(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller does not wait for it."""
    monkeypatch.setattr(finding_hook, "TIMEOUT_S", 2.0)
    server.statuses = [0]
    said: list[str] = []
    calls = hook(server.address, said)
    calls.call(FINDING)
    assert ([], 0) == (said, calls.outcomes.total()), "the caller has waited"
    calls.close(0.01)
    calls.close(60)
    early = "OTEL_RL_ON_FINDING: the sidecar ended before all messages were sent"
    assert [early, "OTEL_RL_ON_FINDING: 127.0.0.1 did not take the message (TimeoutError)"] == said
    assert wait_for(lambda: 3 == len(server.got))  # it may read a request when nobody waits any more


def test_a_server_whose_answer_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part comes in time, so no time-out of the client sees it; the next message is sent all the same."""
    monkeypatch.setattr(finding_hook, "POST_S", 0.3)
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        over = Event()
        Thread(target=drip, args=(listening, over), daemon=True).start()
        calls = hook(f"http://127.0.0.1:{listening.getsockname()[1]}/{SECRET}", said)
        calls.call(FINDING)
        calls.call(FINDING)
        calls.close(60)
        over.set()
    assert ["OTEL_RL_ON_FINDING: 127.0.0.1 did not take the message (it never came to an end)"] * 2 == said
    assert {"failed": 2} == dict(calls.outcomes)


def drip(listening: socket.socket, over: Event) -> None:
    """Answer all who connect with the status of an answer that is still to come, for ever."""

    def answer(client: socket.socket) -> None:
        with suppress(OSError), client:
            while not over.wait(0.02):
                client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")

    with suppress(OSError):
        while True:
            Thread(target=answer, args=(listening.accept()[0],), daemon=True).start()


@pytest.mark.parametrize("status", REDIRECTS)
def test_a_redirect_is_a_refusal(server: Server, status: int) -> None:
    """Nobody else gets the message, its evidence and its signature."""
    server.statuses = [status]
    assert [f"OTEL_RL_ON_FINDING: 127.0.0.1 did not take the message (HTTP {status})"] == call(server.address)
    assert 1 == len(server.got)


@pytest.mark.parametrize("status", [200, 500])
def test_an_answer_of_a_gigabyte_is_not_read(server: Server, status: int) -> None:
    server.statuses, server.answers = [status], 1 << 30
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    call(server.address)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_what_is_posted_is_signed(server: Server) -> None:
    """As standardwebhooks.com has it, each try with the same id: a receiver knows a message that comes twice."""
    key = bytes(range(32))
    server.statuses = [503, 200]
    call(server.address, SECRET=f"whsec_{b64encode(key).decode()}")
    for headers in server.headers:
        signed = f"nan-1-begun.{headers['webhook-timestamp']}.{headers['body']}".encode()
        expected = f"v1,{b64encode(hmac.new(key, signed, 'sha256').digest()).decode()}"
        assert ("nan-1-begun", expected) == (headers["webhook-id"], headers["webhook-signature"])
    assert (2, True) == (len(server.headers), abs(time.time() - int(server.headers[1]["webhook-timestamp"])) < 60)


def test_slack_gets_a_text(server: Server) -> None:
    """With what is known, and without markup of its own in it."""
    call(server.address, FORMAT="slack")
    assert [{"text": slack_text(FINDING)}] == [body for _, _, body in server.got]
    said = {"run": "r", "kind": "learn", "severity": "alarm", "rule": "nan", "sentence": "a < b & <!channel>"}
    text = slack_text({**said, "advice": "Look.", "link": "https://u/r", "evidence": {"stacks": "secret"}})
    assert "*r*: learn alarm `nan`\na &lt; b &amp; &lt;!channel&gt;\nNext: Look.\nhttps://u/r" == text
    assert len(slack_text({"sentence": "x" * 99_999})) == finding_hook.LONGEST_SLACK


def test_rules_that_flap_flood_nobody(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is too much, or comes while too much waits, is dropped, counted, and said once."""
    monkeypatch.setattr(finding_hook, "MOST", 3)
    said: list[str] = []
    calls = hook(server.address, said)
    for _ in range(10):
        calls.call(FINDING)
    calls.close(60)
    assert ({"sent": 3, "dropped": 7}, 3) == (dict(calls.outcomes), len(server.got))
    assert ["OTEL_RL_ON_FINDING: a message was dropped (more than 3 in 10 min); further ones are counted"] == said


@pytest.mark.parametrize(
    ("least", "expected"), [("", [True, False]), ("alarm", [True, False]), ("warning", [True, True])]
)
def test_the_least_severity(least: str, expected: list[bool]) -> None:
    calls = hook("true", [], FROM=least)
    assert expected == [calls.takes(severity) for severity in ("alarm", "warning")]


@pytest.mark.parametrize(
    "settings",
    [
        {"": f"http://example.org/{SECRET}"},
        {"": f"ftp://127.0.0.1/{SECRET}"},
        {"": f"https://example.org/{SECRET} x"},
        {"_SECRET": f"{SECRET}!"},
        {"_SECRET": "c2hvcnQ="},
        {"_FROM": "note"},
        {"_FORMAT": "xml"},
    ],
)
def test_an_impossible_setting_is_said_at_the_start_of_training(settings: dict[str, str]) -> None:
    """Without what may be a secret."""
    with pytest.raises(ConfigurationError, match=r"OTEL_RL_ON_FINDING.* is not possible: it takes ") as caught:
        Config.from_env({f"OTEL_RL_ON_FINDING{key}": value for key, value in settings.items()})
    assert SECRET not in str(caught.value)


def test_a_server_that_is_not_there(server: Server) -> None:
    """Its name is said, and nothing of what follows it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}/{SECRET}"
        assert ["OTEL_RL_ON_FINDING: 127.0.0.1 did not take the message (URLError)"] == call(address)


@pytest.mark.parametrize("address", [f"http://user:{SECRET}@127.0.0.1/"])
def test_an_address_that_cannot_be_is_not_said_either(
    server: Server, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The error of Python would quote it."""
    assert ["OTEL_RL_ON_FINDING: 127.0.0.1 did not take the message (InvalidURL)"] == call(address)
    assert ("", {}) == (caplog.text, dict(errors))


def command(program: str, *arguments: str) -> str:
    """Return a command that runs a program of Python."""
    return shlex.join([sys.executable, "-c", program, *arguments])


def test_a_command_gets_it_on_its_standard_input(tmp_path: Path) -> None:
    """Its own output goes nowhere; an address among its arguments is no address of the hook."""
    got = tmp_path / "got.json"
    program = "import sys; print('hello', file=sys.stderr); open(sys.argv[1], 'w').write(sys.stdin.read())"
    assert ([], FINDING) == (call(command(program, str(got), "https://x.example/y")), json.loads(got.read_text()))


def test_a_command_that_cannot_be_started(tmp_path: Path) -> None:
    """It is said without the command, which may hold a secret."""
    said = "OTEL_RL_ON_FINDING: the command could not be started (No such file or directory)"
    assert [said] == call(str(tmp_path / "gone"))


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("raise SystemExit(3)", "OTEL_RL_ON_FINDING: the command exited with code 3"),
        ("import os; os.kill(os.getpid(), 9)", "OTEL_RL_ON_FINDING: the command exited with code -9"),
    ],
)
def test_a_command_that_fails_is_said(program: str, expected: str) -> None:
    """It may have read nothing."""
    assert [expected] == call(command(program))


def test_a_command_that_hangs_is_killed_with_what_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in a session of its own."""
    monkeypatch.setattr(finding_hook, "COMMAND_S", 1.0)
    pid = tmp_path / "pid"
    program = shlex.join(["sh", "-c", 'sleep 600 & echo $! > "$0"; sleep 600', str(pid)])  # a Python may need a second
    assert ["OTEL_RL_ON_FINDING: the command took longer than 1 s and was killed"] == call(program)
    assert wait_for(lambda: is_gone(int(pid.read_text())))


def is_gone(pid: int) -> bool:
    """Return whether a process has ended; one that nobody waited for counts as ended."""
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text("ascii")
    except OSError:
        return True


def test_without_a_target_nothing_is_called() -> None:
    """No thread is started."""
    calls = hook("", [])
    calls.call(FINDING)
    assert ({}, None) == (dict(calls.outcomes), calls._thread)
