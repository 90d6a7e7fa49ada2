"""Sending one request: what each answer of a real gRPC and a real HTTP server means."""

from __future__ import annotations

import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from pathlib import Path
from typing import Any, Literal

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import BadRequest, RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from otel_rl.journal.frame import Signal
from otel_rl.sidecar.settings import SIGNALS, targets
from otel_rl.sidecar.ship.client import AGENT, UNUSABLE, Client, Outcome, connect
from tests.sink import Answer, Sink, Tls, make_certificates, sink
from tests.waiting import wait_for

pytestmark = pytest.mark.medium

Protocol = Literal["grpc", "http"]
PROTOCOLS: tuple[Protocol, ...] = ("grpc", "http")
NAMES = {"grpc": "grpc", "http": "http/protobuf"}
STATUS = grpc.StatusCode


def client_of(endpoint: str, protocol: Protocol, signal: Signal = "traces", **variables: str) -> Client:
    """Make the client that the variables say."""
    environ = {f"OTEL_EXPORTER_OTLP_{name}": value for name, value in variables.items()}
    environ |= {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": NAMES[protocol]}
    (target,) = [target for target in targets(environ) if target.signal == signal]
    return connect(target)


@pytest.fixture(params=PROTOCOLS)
def server(request: pytest.FixtureRequest) -> Iterator[tuple[Sink, Protocol]]:
    """A server, and by which protocol."""
    with sink(request.param) as found:
        yield found, request.param


def send(endpoint: str, protocol: Protocol, payload: bytes = b"", **variables: str) -> Outcome:
    """Send one request to where nobody may be."""
    client = client_of(endpoint, protocol, **variables)
    outcome = client.send(payload)
    client.close()
    return outcome


def accepts(client: Client) -> bool:
    """Whether a request is accepted soon: a slow machine may need more than one timeout."""
    return any(client.send(b"").kind == "accepted" for _ in range(30))


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_the_bytes_arrive(server: tuple[Sink, Protocol], signal: Signal, compression: str) -> None:
    """Each signal at its place, compressed or not, with the headers, one after the other."""
    found, protocol = server
    client = client_of(found.endpoint, protocol, signal, COMPRESSION=compression, HEADERS="Authorization=Bearer%20x")
    for payload in (b"", b"\x0a\x00" * 100_000):
        assert Outcome("accepted") == client.send(payload)
    client.close()
    assert [(signal, b""), (signal, b"\x0a\x00" * 100_000)] == [request[:2] for request in found.requests]
    headers = found.requests[-1][2]
    assert ("Bearer x", AGENT) == (headers["authorization"], headers["user-agent"][: len(AGENT)])
    if protocol == "http":
        assert f"/v1/{signal}" == headers[":path"]
        assert "application/x-protobuf" == headers["content-type"]
        sent = int(headers["content-length"])
        assert (sent < 1000) is (compression == "gzip")


def test_partial_success_is_counted(server: tuple[Sink, Protocol]) -> None:
    """The server says how many it did not take, and why."""
    found, protocol = server
    found.answer = lambda signal, payload: Answer(rejected=3)
    assert Outcome("accepted", 3, reason="as the test wants") == send(found.endpoint, protocol)


def test_a_server_that_hangs(server: tuple[Sink, Protocol]) -> None:
    """The timeout holds, and the next request is answered."""
    found, protocol = server
    delays = [5.0]
    found.answer = lambda signal, payload: Answer(delay_s=delays.pop() if delays else 0.0)
    client = client_of(found.endpoint, protocol, TIMEOUT="1000")
    assert "later" == client.send(b"").kind
    assert accepts(client)
    client.close()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nobody_is_there(protocol: Protocol) -> None:
    """A refused connection, and a name that nobody knows."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert "later" == send(f"http://127.0.0.1:{port}", protocol).kind
    assert "later" == send("http://nobody.invalid:1", protocol, TIMEOUT="2000").kind


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_server_that_speaks_something_else(protocol: Protocol) -> None:
    """It is no OTLP server: wait for one."""
    other: Protocol = "http" if protocol == "grpc" else "grpc"
    with sink(other) as found:
        assert "later" == send(found.endpoint, protocol, TIMEOUT="1000").kind


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_server_that_goes_and_comes_back(protocol: Protocol) -> None:
    """One client outlives it."""
    with sink(protocol) as found:
        client = client_of(found.endpoint, protocol)
        assert "accepted" == client.send(b"").kind
    assert "later" == client.send(b"").kind
    with sink(protocol, int(found.endpoint.rpartition(":")[2])):
        assert wait_for(lambda: client.send(b"").kind == "accepted")
    client.close()


class Relay:
    """Passes connections on to a server, until it freezes those that are there: a machine that went without a word."""

    def __init__(self, port: int) -> None:
        self.frozen = threading.Event()
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.sockets = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Cut every connection."""
        for one in self.sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
                self.sockets += [near, far]
                is_old = not self.frozen.is_set()
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=(*pair, is_old), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, is_old: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if not (is_old and self.frozen.is_set()):
                    target.sendall(data)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_connection_that_is_dead_is_left(protocol: Protocol) -> None:
    """After one timeout a new one is made; the system itself would take a quarter of an hour."""
    with sink(protocol) as found:
        relay = Relay(int(found.endpoint.rpartition(":")[2]))
        client = client_of(relay.endpoint, protocol, TIMEOUT="500")
        assert accepts(client)
        relay.frozen.set()
        assert "later" == client.send(b"").kind
        assert accepts(client)
        client.close()
        relay.close()


def test_each_signal_has_a_connection_of_its_own() -> None:
    """One that is stuck holds up no other, and nobody keeps it once it is left."""
    with sink("grpc") as found:
        relay = Relay(int(found.endpoint.rpartition(":")[2]))
        clients = [client_of(relay.endpoint, "grpc", signal, TIMEOUT="500") for signal in SIGNALS]
        assert all(map(accepts, clients))
        relay.frozen.set()
        assert "later" == clients[0].send(b"").kind
        assert accepts(clients[0])
        for client in clients:
            client.close()
        relay.close()


SLOW: dict[str, tuple[bytes, bytes]] = {
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X-A: 1\r\n"),
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "a body": (b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\n\r\n", b"\x0a"),
}


@contextmanager
def trickling(kind: str, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve a part of an answer, then a bit of it ten times a second, at most for a minute; give the endpoint."""
    begin, bit = SLOW[kind]
    over = threading.Event()

    def answer(listener: socket.socket) -> None:
        with suppress(OSError):
            connection, _ = listener.accept()
            with tls.wrap_socket(connection, server_side=True) if tls else connection as speaking:
                speaking.recv(1 << 16)
                speaking.sendall(begin)
                for _ in range(600):
                    if over.wait(0.1):
                        return
                    speaking.sendall(bit)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,), daemon=True)
        thread.start()
        yield f"{'https' if tls else 'http'}://127.0.0.1:{listener.getsockname()[1]}"
        over.set()
        thread.join()


@pytest.mark.parametrize("kind", SLOW)
def test_the_timeout_is_that_of_the_whole_request(kind: str) -> None:
    """Also where the other side says something all the time."""
    with trickling(kind) as endpoint:
        assert Outcome("later", reason="ReadTimeout") == send(endpoint, "http", TIMEOUT="1000")


def test_an_answer_that_never_ends_keeps_no_thread() -> None:
    """The request is given up, and so is its connection."""
    before = set(threading.enumerate())
    with trickling("a body") as endpoint:
        assert Outcome("later", reason="ReadTimeout") == send(endpoint, "http", TIMEOUT="500")
        given_up = [one for one in set(threading.enumerate()) - before if one.name == "otel_rl-http"]
        for thread in given_up:
            thread.join(60)
        assert not any(thread.is_alive() for thread in given_up)


def test_it_is_so_with_tls_and_behind_a_proxy(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the server says something."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    with trickling("headers", context) as endpoint:
        # a third of the limit is for the connection, with its handshake
        outcome = send(endpoint, "http", TIMEOUT="5000", CERTIFICATE=str(certificates / "ca.pem"))
    assert Outcome("later", reason="ReadTimeout") == outcome
    with trickling("headers") as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        assert Outcome("later", reason="ReadTimeout") == send("http://collector.invalid:4318", "http", TIMEOUT="1000")


def test_one_address_of_a_host_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one is asked in time, for a whole request."""
    with sink("http") as found, socket.socket() as hole:
        port = int(found.endpoint.rpartition(":")[2])
        hole.bind(("127.0.0.2", port))
        hole.listen(0)
        waiting = [socket.socket() for _ in range(3)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(("127.0.0.2", port))
        resolve(monkeypatch, "127.0.0.2", "127.0.0.1", port=port)
        client = client_of(f"http://collector.example:{port}", "http", TIMEOUT="6000")
        outcome = client.send(b"")
        client.close()
        for one in waiting:
            one.close()
        assert Outcome("accepted") == outcome


def test_a_host_that_nobody_knows() -> None:
    """It waits, as one that does not answer."""
    outcome = send("http://collector.invalid:4318", "http")
    assert ("later", "ConnectionError, ", "") == (outcome.kind, outcome.reason[:17], outcome.advice)


def resolve(monkeypatch: pytest.MonkeyPatch, *addresses: str, port: int) -> None:
    """Let ``collector.example`` have these addresses."""
    known = socket.getaddrinfo

    def look_up(host: Any, *more: Any, **options: Any) -> Any:
        if host != "collector.example":
            return known(host, *more, **options)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


def test_what_is_in_time_stays_connected() -> None:
    """One connection serves many requests."""
    with sink("http") as found:
        relay = Relay(int(found.endpoint.rpartition(":")[2]))
        client = client_of(relay.endpoint, "http", TIMEOUT="60000")
        assert all([accepts(client) for _ in range(3)])
        assert (3, 3) == (len(found.requests), len(relay.sockets))  # the listener and both ends of one connection
        client.close()
        relay.close()


HTTP = [
    (429, {}, Outcome("later", reason="HTTP 429")),
    (429, {"Retry-After": "7"}, Outcome("later", after_s=7.0, reason="HTTP 429")),
    (503, {"Retry-After": "0"}, Outcome("later", reason="HTTP 503")),
    (503, {"Retry-After": "soon"}, Outcome("later", reason="HTTP 503")),
    (503, {"Retry-After": "inf"}, Outcome("later", reason="HTTP 503")),
    (503, {"Retry-After": "-1"}, Outcome("later", reason="HTTP 503")),
    (503, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, Outcome("later", reason="HTTP 503")),
    (502, {}, Outcome("later", reason="HTTP 502")),
    (504, {}, Outcome("later", reason="HTTP 504")),
    (413, {}, Outcome("too_large", reason="HTTP 413")),
    (400, {}, Outcome("refused", reason="HTTP 400")),
    (500, {}, Outcome("refused", reason="HTTP 500")),
    (401, {}, Outcome("blocked", reason="HTTP 401")),
    (403, {}, Outcome("blocked", reason="HTTP 403")),
    (404, {}, Outcome("blocked", reason="HTTP 404")),
    (302, {"Location": "http://elsewhere.invalid/"}, Outcome("blocked", reason="HTTP 302")),
]


@pytest.mark.parametrize(("status", "headers", "outcome"), HTTP)
def test_answers_of_http(status: int, headers: dict[str, str], outcome: Outcome) -> None:
    """As the specification says."""
    with sink("http") as found:
        found.answer = lambda signal, payload: Answer(status, headers=tuple(headers.items()))
        assert outcome == send(found.endpoint, "http")
        assert 1 == len(found.requests)


def test_retry_after_a_date() -> None:
    """It is taken as seconds from now."""
    with sink("http") as found:
        when = format_datetime(datetime.now(timezone.utc) + timedelta(seconds=60), usegmt=True)
        found.answer = lambda signal, payload: Answer(503, headers=(("Retry-After", when),))
        assert 0 < send(found.endpoint, "http").after_s <= 60


TAKEN = ExportTraceServiceResponse(partial_success={"rejected_spans": 2, "error_message": "why"})
TEXT_60 = ExportTraceServiceResponse(partial_success={"error_message": "w" * 58})
"""Its first bytes are those of a line feed and of ``<``."""
BODIES = [
    (b"", "", Outcome("accepted")),
    (b"", "text/html", Outcome("accepted")),
    (TAKEN.SerializeToString(), "application/x-protobuf", Outcome("accepted", 2, reason="why")),
    (TAKEN.SerializeToString(), "", Outcome("accepted", 2, reason="why")),
    (TEXT_60.SerializeToString(), "", Outcome("accepted", reason="w" * 58)),
]
NO_MESSAGES = [
    (b"{}", "application/json", "accepted", "application/json"),
    (b"null", "application/json; charset=utf-8", "accepted", "application/json"),
    (b"OK", "text/plain", "accepted", "text/plain"),
    (b"{", "", "accepted", "of no type"),
    (b"<html>", "Text/HTML; charset=utf-8", "later", "Text/HTML"),
    (b"{}", "text/html", "later", "text/html"),
    (b"<html>", "", "later", "of no type"),
    (b"\r\n <html>", "text/plain", "later", "text/plain"),
]


@pytest.mark.parametrize(("body", "kind", "expected"), BODIES)
def test_an_answer_that_is_a_message(body: bytes, kind: str, expected: Outcome) -> None:
    """Protobuf as the specification wants it, of any type."""
    with sink("http") as found:
        found.body, found.kind = body, kind
        if not body:
            found.answer = lambda signal, payload: Answer(204)
        assert expected == send(found.endpoint, "http")


@pytest.mark.parametrize(("body", "kind", "outcome", "shown"), NO_MESSAGES)
def test_an_answer_that_is_no_message(body: bytes, kind: str, outcome: Any, shown: str) -> None:
    """Status 200 with the page of a proxy takes nothing, and the request waits; anything else has taken it."""
    reason = f"HTTP 200, {shown}" if outcome == "later" else ""
    expected = Outcome(outcome, reason=reason, advice=f"the answer is {shown} and not OTLP")
    with sink("http") as found:
        found.body, found.kind = body, kind
        assert expected == send(found.endpoint, "http")


def status_of(*details: Any) -> tuple[tuple[str, bytes], ...]:
    """Trailing metadata with the details of a status."""
    packed = []
    for detail in details:
        packed.append(AnyMessage())
        packed[-1].Pack(detail)
    return (("grpc-status-details-bin", Status(code=8, details=packed).SerializeToString()),)


RETRY = RetryInfo(retry_delay=Duration(seconds=2, nanos=500_000_000))
GRPC = [
    (STATUS.UNAVAILABLE, (), "later", 0.0),
    (STATUS.UNAVAILABLE, status_of(BadRequest(), RETRY), "later", 2.5),
    (STATUS.RESOURCE_EXHAUSTED, status_of(RETRY), "later", 2.5),
    (STATUS.RESOURCE_EXHAUSTED, status_of(RetryInfo()), "later", 0.0),
    (STATUS.RESOURCE_EXHAUSTED, (), "later", 0.0),
    (STATUS.RESOURCE_EXHAUSTED, status_of(BadRequest()), "later", 0.0),
    (STATUS.RESOURCE_EXHAUSTED, (("grpc-status-details-bin", b"\xff\xff"),), "later", 0.0),
    (STATUS.CANCELLED, (), "later", 0.0),
    (STATUS.DEADLINE_EXCEEDED, (), "later", 0.0),
    (STATUS.ABORTED, (), "later", 0.0),
    (STATUS.OUT_OF_RANGE, (), "later", 0.0),
    (STATUS.DATA_LOSS, (), "later", 0.0),
    (STATUS.INVALID_ARGUMENT, (), "refused", 0.0),
    (STATUS.INTERNAL, (), "refused", 0.0),
    (STATUS.UNKNOWN, (), "refused", 0.0),
    (STATUS.UNAUTHENTICATED, (), "blocked", 0.0),
    (STATUS.PERMISSION_DENIED, (), "blocked", 0.0),
    (STATUS.UNIMPLEMENTED, (), "blocked", 0.0),
]


@pytest.mark.parametrize(("code", "trailing", "kind", "after_s"), GRPC)
def test_answers_of_grpc(code: Any, trailing: Any, kind: Any, after_s: float) -> None:
    """As the specification says."""
    with sink("grpc") as found:
        found.answer = lambda signal, payload: Answer(code=code, trailing=trailing)
        assert Outcome(kind, after_s=after_s, reason=f"gRPC {code.name}") == send(found.endpoint, "grpc")


TEXTS = [
    (STATUS.RESOURCE_EXHAUSTED, "grpc: received message larger than max (5242880 vs. 4194304)", "too_large"),
    (STATUS.RESOURCE_EXHAUSTED, "grpc: received message after decompression larger than max 4194304", "too_large"),
    (STATUS.RESOURCE_EXHAUSTED, "SERVER: Received message larger than max (5242880 vs. 4194304)", "too_large"),
    (STATUS.RESOURCE_EXHAUSTED, "gRPC message exceeds maximum size 4194304: 5242880", "too_large"),
    (STATUS.RESOURCE_EXHAUSTED, "Received message exceeds the maximum configured message size.", "too_large"),
    (STATUS.OUT_OF_RANGE, "Error, message length too large: found 5242880 bytes, the limit is: 4194304", "too_large"),
    (STATUS.RESOURCE_EXHAUSTED, "RATE_LIMITED: ingestion rate limit exceeded while adding 5242880 bytes", "later"),
    (STATUS.RESOURCE_EXHAUSTED, "request rate exceeds the limit, try again later", "later"),
    (STATUS.RESOURCE_EXHAUSTED, "", "later"),
    (STATUS.OUT_OF_RANGE, "", "later"),
    (STATUS.INVALID_ARGUMENT, "message too large", "refused"),
]


@pytest.mark.parametrize(("code", "text", "kind"), TEXTS)
def test_a_rate_limit_is_no_limit_of_sizes(code: Any, text: str, kind: Any) -> None:
    """The code of both is the same: only what says that it is too large is made smaller, the other waits."""
    with sink("grpc") as found:
        found.answer = lambda signal, payload: Answer(code=code, text=text)
        assert Outcome(kind, reason=f"gRPC {code.name}") == send(found.endpoint, "grpc")


def test_a_request_above_the_servers_limit() -> None:
    """A real server's refusal asks for smaller ones."""
    with sink("grpc") as found:
        assert "too_large" == send(found.endpoint, "grpc", bytes(5 << 20)).kind


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of them."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_server_is_known_by_its_authority(
    protocol: Protocol, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A custom one; without it, or with another, nothing is sent."""
    tls = Tls(certificates / "server.key", certificates / "server.pem")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificates / "other.pem"))
    with sink(protocol, tls=tls) as found:
        ca, other = str(certificates / "ca.pem"), str(certificates / "other.pem")
        assert "accepted" == send(found.endpoint, protocol, CERTIFICATE=ca).kind
        assert "later" == send(found.endpoint, protocol, CERTIFICATE=other, TIMEOUT="2000").kind
        assert "later" == send(found.endpoint, protocol, TIMEOUT="2000").kind
        assert 1 == len(found.requests)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_client_shows_its_certificate(protocol: Protocol, certificates: Path) -> None:
    """With its key beside it or in the same file; without it nobody is let in."""
    tls = Tls(certificates / "server.key", certificates / "server.pem", certificates / "ca.pem")
    ca, key, certificate, both = (
        str(certificates / name) for name in ("ca.pem", "client.key", "client.pem", "both.pem")
    )
    with sink(protocol, tls=tls) as found:
        one = send(found.endpoint, protocol, CERTIFICATE=ca, CLIENT_KEY=key, CLIENT_CERTIFICATE=certificate)
        two = send(found.endpoint, protocol, CERTIFICATE=ca, CLIENT_CERTIFICATE=both)
        assert ["accepted", "accepted"] == [one.kind, two.kind]
        assert "later" == send(found.endpoint, protocol, CERTIFICATE=ca, TIMEOUT="2000").kind
        assert 2 == len(found.requests)


TLS_FAILS = {"grpc": "gRPC UNAVAILABLE, TLS", "http": "SSLError"}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_fault_of_tls_is_no_outage(protocol: Protocol, certificates: Path) -> None:
    """It says what is wrong: an authority that did not sign, or a server that speaks no TLS; and waits."""
    tls = Tls(certificates / "server.key", certificates / "server.pem")
    with sink(protocol, tls=tls) as found, sink(protocol) as plain:
        other = send(found.endpoint, protocol, CERTIFICATE=str(certificates / "other.pem"))
        none = send(plain.endpoint.replace("http:", "https:"), protocol)
    assert [("later", TLS_FAILS[protocol])] * 2 == [(outcome.kind, outcome.reason) for outcome in (other, none)]
    assert "CERTIFICATE_VERIFY_FAILED" in other.advice
    assert "WRONG_VERSION_NUMBER" in none.advice


FROM_BEHIND = 'connection error: desc = "transport: authentication handshake failed: tls: first record"'


@pytest.mark.parametrize("is_secure", [False, True])
def test_a_fault_of_tls_behind_the_server_is_an_outage(certificates: Path, is_secure: bool) -> None:
    """It has answered, and says how long to wait."""
    tls = Tls(certificates / "server.key", certificates / "server.pem") if is_secure else None
    with sink("grpc", tls=tls) as found:
        found.answer = lambda *request: Answer(code=STATUS.UNAVAILABLE, trailing=status_of(RETRY), text=FROM_BEHIND)
        outcome = send(found.endpoint, "grpc", CERTIFICATE=str(certificates / "ca.pem"))
    assert Outcome("later", after_s=2.5, reason="gRPC UNAVAILABLE") == outcome


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_name_with_tls_in_it_is_no_fault_of_tls(scheme: str) -> None:
    """Nobody knows the host."""
    outcome = send(f"{scheme}://tls-certificate.invalid:4317", "grpc", TIMEOUT="5000")
    assert ("later", "") == (outcome.kind, outcome.advice)


def test_a_url_is_not_shown_where_tls_fails() -> None:
    """It may hold a token."""
    with sink("http") as found:
        client = client_of(
            found.endpoint, "http", TRACES_ENDPOINT=f"{found.endpoint}/v1?token=x7".replace("http:", "https:")
        )
        outcome = client.send(b"")
        client.close()
    assert ("later", "SSLError", False) == (outcome.kind, outcome.reason, "x7" in outcome.advice)


@pytest.mark.parametrize(
    "proxy",
    [
        "ftp://127.0.0.1:1",
        "http://",
        "socks9://127.0.0.1:1",
        "http://me:x7\N{ACCOUNT OF}@127.0.0.1:1",
        "http://x7..corp:1",
    ],
)
def test_a_proxy_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    """Everything waits; it is said what to look at, and no password."""
    for name in ("no_proxy", "NO_PROXY", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", proxy)
    outcome = send("http://collector.corp:4318", "http")
    assert outcome == Outcome("later", reason=outcome.reason, advice=UNUSABLE)
    assert outcome.reason in (
        "InvalidURL",
        "InvalidProxyURL",
        "InvalidSchema",
        "UnicodeEncodeError",
        "LocationParseError",
    )


def test_a_netrc_does_not_replace_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The header that was asked for is sent."""
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login a password b\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    with sink("http") as found:
        assert "accepted" == send(found.endpoint, "http", HEADERS="Authorization=Bearer%20x").kind
        assert "Bearer x" == found.requests[0][2]["authorization"]


@pytest.mark.parametrize("name", ["ca.pem", "client.key", "client.pem"])
def test_a_file_that_vanishes_comes_back(certificates: Path, tmp_path: Path, name: str) -> None:
    """While somebody replaces a certificate or a key requests wait; what is missing is said with its path."""
    for file in ("ca.pem", "client.key", "client.pem"):
        shutil.copy(certificates / file, tmp_path / file)
    tls = Tls(certificates / "server.key", certificates / "server.pem", certificates / "ca.pem")
    with sink("http", tls=tls) as found:
        ca, key, certificate = (str(tmp_path / file) for file in ("ca.pem", "client.key", "client.pem"))
        client = client_of(found.endpoint, "http", CERTIFICATE=ca, CLIENT_KEY=key, CLIENT_CERTIFICATE=certificate)
        (tmp_path / name).rename(tmp_path / "away")
        outcome = client.send(b"")
        assert ("later", "OSError", True) == (outcome.kind, outcome.reason, str(tmp_path / name) in outcome.advice)
        (tmp_path / "away").rename(tmp_path / name)
        assert Outcome("accepted") == client.send(b"")
        client.close()
