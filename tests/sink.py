"""Both ends of shipping: journals as training processes write them, and an OTLP server that answers as a test wants.

Real gRPC, real HTTP, real files; no Collector needed.
"""

from __future__ import annotations

import gzip
import itertools
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, NamedTuple

import grpc

from otel_rl import vocabulary
from otel_rl.journal.frame import Signal
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.otlp.encode import OtlpRequest, SpanEncoder
from otel_rl.journal.write import Writer
from otel_rl.records import Log, MetricPoints, Number
from otel_rl.sidecar.ship.client import REJECTED, RESPONSES, SERVICES
from otel_rl.sidecar.ship.split import FIELDS, MESSAGES
from tests.made_runs import FakeSpan

MAX_BYTES = 4 << 20
"""What a gRPC server takes unless it is told otherwise."""


@dataclass(frozen=True)
class Answer:
    """What the server says."""

    status: int = 200
    """For HTTP."""
    code: grpc.StatusCode = grpc.StatusCode.OK
    """For gRPC."""
    headers: tuple[tuple[str, str], ...] = ()
    trailing: tuple[tuple[str, bytes], ...] = ()
    rejected: int = 0
    delay_s: float = 0.0
    text: str = "as the test wants"
    """What gRPC says beside the code."""


TAKEN = Answer()


@dataclass
class Sink:
    """What arrived, and how the next request is answered."""

    endpoint: str = ""
    answer: Callable[[Signal, bytes], Answer] = lambda signal, payload: TAKEN
    body: bytes = b""
    """What HTTP answers with instead of a response."""
    kind: str = "application/x-protobuf"
    """Of what type that is."""
    requests: list[tuple[Signal, bytes, dict[str, str], Answer]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def handle(self, signal: Signal, payload: bytes, headers: dict[str, str]) -> Answer:
        """Keep a request and decide the answer."""
        answer = self.answer(signal, payload)
        if answer.delay_s:
            time.sleep(answer.delay_s)
        with self.lock:
            self.requests.append((signal, payload, headers, answer))
        return answer

    def taken(self, signal: Signal) -> list[Any]:
        """The records of a signal that were taken, once for each time they came: spans, metrics or log records."""
        return [
            record
            for kind, payload, _, answer in list(self.requests)
            if kind == signal and answer.status == 200 and answer.code is grpc.StatusCode.OK
            for record in records_of(signal, payload)
        ]

    def ids(self) -> list[bytes]:
        """The ids of the spans that were taken, in the order in which they came."""
        return [span.span_id for span in self.taken("traces")]

    def spans(self) -> dict[bytes, bytes]:
        """The spans that were taken, by id; nothing may have come twice with different content."""
        found: dict[bytes, bytes] = {}
        for span in self.taken("traces"):
            content = span.SerializeToString(deterministic=True)
            assert found.setdefault(span.span_id, content) == content
        return found


class SlowLink:
    """A server's answers on a link that takes small requests, and 40 s for each by a clock of its own."""

    seconds = 1000.0

    def __call__(self) -> float:
        """Read the clock."""
        return self.seconds

    def answer(self, signal: Signal, payload: bytes) -> Answer:
        """Take a small request after 40 s; a large one is too large at once."""
        if len(payload) > 2000:
            return Answer(413)
        self.seconds += 40
        return TAKEN


class Tls(NamedTuple):
    """What a server shows, and whose clients it lets in."""

    key: Path
    certificate: Path
    clients: Path | None = None


def make_certificates(directory: Path) -> Path:
    """Fill a directory with two authorities (ca, other), a server's and a client's certificate of the first."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)

    for name in ("ca", "other"):
        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.pem",
                "-days", "2", "-subj", f"/CN={name}")  # fmt: skip
    for name in ("server", "client"):
        (directory / f"{name}.ext").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost")
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr",
                "-subj", f"/CN={name}")  # fmt: skip
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                "-out", f"{name}.pem", "-days", "2", "-extfile", f"{name}.ext")  # fmt: skip
    both = (directory / "client.key").read_bytes() + (directory / "client.pem").read_bytes()
    (directory / "both.pem").write_bytes(both)
    return directory


@contextmanager
def sink(protocol: Literal["grpc", "http"], port: int = 0, tls: Tls | None = None) -> Iterator[Sink]:
    """Serve until the block ends, on a port of loopback; then every connection is cut."""
    with (_grpc if protocol == "grpc" else _http)(port, tls) as server:
        yield server


@contextmanager
def _grpc(port: int, tls: Tls | None) -> Iterator[Sink]:
    found = Sink()
    server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.max_receive_message_length", MAX_BYTES)])
    for signal, service in SERVICES.items():
        server.add_generic_rpc_handlers((_handler(found, signal, service),))
    if tls is None:
        bound = server.add_insecure_port(f"127.0.0.1:{port}")
    else:
        pair = [(tls.key.read_bytes(), tls.certificate.read_bytes())]
        clients = tls.clients.read_bytes() if tls.clients else None
        credentials = grpc.ssl_server_credentials(pair, clients, require_client_auth=clients is not None)
        bound = server.add_secure_port(f"127.0.0.1:{port}", credentials)
    found.endpoint = f"{'https' if tls else 'http'}://127.0.0.1:{bound}"
    server.start()
    try:
        yield found
    finally:
        server.stop(0).wait()


def _handler(found: Sink, signal: Signal, service: str) -> grpc.GenericRpcHandler:
    def export(payload: bytes, context: grpc.ServicerContext) -> bytes:
        answer = found.handle(signal, payload, dict(context.invocation_metadata()))
        if answer.code is not grpc.StatusCode.OK:
            context.set_trailing_metadata(answer.trailing)
            context.abort(answer.code, answer.text)
        return _response(signal, answer)

    return grpc.method_handlers_generic_handler(service, {"Export": grpc.unary_unary_rpc_method_handler(export)})


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self.connections: list[socket.socket] = []
        super().__init__(("127.0.0.1", port), handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.append(request)
        super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that gave up, or is not let in, is part of the test."""


@contextmanager
def _http(port: int, tls: Tls | None) -> Iterator[Sink]:
    found = Sink()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            signal: Any = self.path.rpartition("/")[2]
            length = int(self.headers["Content-Length"])
            payload = self.rfile.read(length)
            if len(payload) < length:  # who sent it gave up
                self.close_connection = True
                return
            if self.headers.get("Content-Encoding") == "gzip":
                payload = gzip.decompress(payload)
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = found.handle(signal, payload, {**headers, ":path": self.path})
            content = found.body or _response(signal, answer) if answer.status == 200 else b""
            self.send_response(answer.status)
            for name, value in answer.headers:
                self.send_header(name, value)
            if found.kind:
                self.send_header("Content-Type", found.kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = _Server(port, Handler)
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls.certificate, tls.key)
        if tls.clients:
            context.load_verify_locations(tls.clients)
            context.verify_mode = ssl.CERT_REQUIRED
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    found.endpoint = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        for connection in server.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


def _response(signal: Signal, answer: Answer) -> bytes:
    response = RESPONSES[signal]()
    if answer.rejected:
        setattr(response.partial_success, REJECTED[signal], answer.rejected)
        response.partial_success.error_message = "as the test wants"
    content: bytes = response.SerializeToString()
    return content


ALIVE = WriterIdentity.current("trainer", 0, "1.0")
"""This process."""
DEAD = replace(ALIVE, start_time=1)
"""A process of this node that is gone."""
_numbers = itertools.count(1)


class Rank:
    """A training process that journals, in frames of the size that a test wants."""

    def __init__(self, directory: Path, identity: WriterIdentity = DEAD, world_size: int = 1, **sizes: int) -> None:
        self.directory = directory
        self.identity = replace(identity, writer=f"{identity.writer}-{next(_numbers)}")
        self.encoder = SpanEncoder({vocabulary.RANK: 0, vocabulary.WORLD_SIZE: world_size}, "1.0")
        self.writer = Writer(directory, self.identity, **{"max_bytes": 1 << 30, **sizes})
        self.spans: dict[bytes, bytes] = {}
        """What was journaled, by span id."""

    def write(self, spans: int = 10, frames: int = 1, *, text: str = "", age_s: float = 0) -> list[bytes]:
        """Journal frames of spans, each a trace, and a point and a log record with each; give the ids of the spans."""
        end_ns = time.time_ns() - round(age_s * 1e9)
        ids = []
        for _ in range(frames):
            trace = next(_numbers)
            made = [
                FakeSpan("work", trace, next(_numbers), 1, end_ns - 1000, end_ns, {"text": text, "n": number})
                for number in range(spans)
            ]
            ids += self.append(self.encoder.encode(made))
            point = MetricPoints("m", "gauge", "1", "", [Number(end_ns, 1.0)])
            self.append(self.encoder.encode_metrics([point]))
            self.append(self.encoder.encode_logs([Log("event", end_ns, {})]))
        return ids

    def append(self, requests: list[OtlpRequest]) -> list[bytes]:
        """Journal requests; give the ids of their spans."""
        ids = []
        for request in requests:
            self.writer.append(request.signal, request.payload, request.count, request.first_ns, request.last_ns)
            if request.signal == "traces":
                spans = records_of("traces", request.payload)
                self.spans.update({span.span_id: span.SerializeToString(deterministic=True) for span in spans})
                ids += [span.span_id for span in spans]
        return ids


def records_of(signal: Signal, payload: bytes) -> list[Any]:
    """The records of a request: spans, metrics or log records."""
    outer, middle, inner = FIELDS[signal]
    return [
        record
        for resource in getattr(MESSAGES[signal].FromString(payload), outer)
        for scope in getattr(resource, middle)
        for record in getattr(scope, inner)
    ]
