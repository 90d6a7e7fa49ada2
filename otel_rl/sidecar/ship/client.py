"""Send one OTLP request, and say what its answer means: accepted, later, smaller, or never.

The requests are bytes as they were journaled; nothing is decoded or encoded here. Source: the OTLP specification 1.9,
sections "OTLP/gRPC Response" and "OTLP/HTTP Response".
"""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any, Final, Literal, NamedTuple

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from otel_rl.guard import guard
from otel_rl.journal.frame import Signal
from otel_rl.sidecar.settings import Target
from otel_rl.version import __version__

AGENT: Final = f"otel_rl/{__version__}"
SERVICES: Final[dict[Signal, str]] = {
    "traces": "opentelemetry.proto.collector.trace.v1.TraceService",
    "metrics": "opentelemetry.proto.collector.metrics.v1.MetricsService",
    "logs": "opentelemetry.proto.collector.logs.v1.LogsService",
}
RESPONSES: Final[dict[Signal, Any]] = {
    "traces": ExportTraceServiceResponse,
    "metrics": ExportMetricsServiceResponse,
    "logs": ExportLogsServiceResponse,
}
REJECTED: Final[dict[Signal, str]] = {
    "traces": "rejected_spans",
    "metrics": "rejected_data_points",
    "logs": "rejected_log_records",
}
LATER_GRPC: Final = frozenset({
    "CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS",
    "RESOURCE_EXHAUSTED",  # final without RetryInfo in the specification, but rate limiters send none
})  # fmt: skip
TOO_LARGE_CODES: Final = frozenset({"RESOURCE_EXHAUSTED", "OUT_OF_RANGE"})
BLOCKED_GRPC: Final = frozenset({"UNAUTHENTICATED", "PERMISSION_DENIED", "UNIMPLEMENTED", "NOT_FOUND"})
BROKEN_GRPC: Final = ("RST_STREAM", "Stream removed", "GOAWAY", "Socket closed")
"""The details of a call whose connection broke contain one of these, whatever its code: there was no answer."""
TOO_LARGE_GRPC: Final = re.compile(
    r"larger than max|message exceeds|(message|request|payload|body)( length| size)?( is)? too (large|big|long)", re.I
)
"""Matches the details of a call that was too large (Go, C++, Python, Java, Rust): a rate limit has the same code."""
TLS_GRPC: Final = re.compile(r"failed to connect to all addresses.*\b(ssl|tls|handshak|certificate)", re.I | re.S)
"""Matches the details of a call that could not speak TLS with the server."""
NO_HOST_GRPC: Final = re.compile(r"to remote host: (\w[\w ]{,40})|address lookup failed|DNS resolution failed")
UNUSABLE: Final = (
    "the endpoint or the proxy of the environment is no address to call, or SOCKS lacks the package PySocks"
)
TOO_LATE: Final = "ReadTimeout"
"""What ``requests`` calls an answer that did not come in time."""
FOR_ADDRESS: Final = 1 / 3
"""Part of the time limit for the connection to each address of a host: two may be dead before one that answers."""
LATER_HTTP: Final = frozenset({429, 502, 503, 504})
BLOCKED_HTTP: Final = frozenset({301, 302, 303, 307, 308, 401, 403, 404, 405, 407, 415})
CREDENTIALS: Final = frozenset({"gRPC UNAUTHENTICATED", "gRPC PERMISSION_DENIED", "HTTP 401", "HTTP 403", "HTTP 407"})
TOO_LARGE_HTTP: Final = 413
HTML: Final = "text/html"
RETRY_INFO: Final = "grpc-status-details-bin"
RECONNECT_MS: Final = 5_000
"""How long a gRPC channel waits at most before it connects again; gRPC's default is 120,000."""


class Outcome(NamedTuple):
    """What became of a request."""

    kind: Literal["accepted", "later", "blocked", "too_large", "refused"]
    """``later``: try again; ``blocked``: the server accepts nothing until the settings are fixed; ``too_large``: try
    smaller ones; ``refused``: this request is never accepted."""
    rejected: int = 0
    """Records of an accepted request that were not accepted (partial success)."""
    after_s: float = 0.0
    """How long the server asks us to wait."""
    reason: str = ""
    advice: str = ""
    """What is wrong, if only a person can fix it."""


def explain(outcome: Outcome, signal: Signal) -> str:
    """Return why a request waits, and what a person can do."""
    if outcome.reason in CREDENTIALS:
        what = f"The server rejected our credentials for {signal} ({outcome.reason})"
        return f"{what}; check endpoint, headers and certificates"
    if outcome.kind == "blocked":
        return f"The server accepts no {signal} at this address ({outcome.reason}); check the endpoint"
    if outcome.advice:
        return f"The {signal} cannot be sent: {outcome.advice}; check endpoint and certificates"
    return f"No server accepts {signal} at present ({outcome.reason})"


class GrpcClient:
    """OTLP over gRPC; the channel connects, and connects again, by itself."""

    def __init__(self, target: Target) -> None:
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # read once
        import grpc

        self._target = target
        self.timeout_s = target.timeout_s
        self._error: type[Exception] = grpc.RpcError
        key, certificate = target.client_key or target.client_certificate, target.client_certificate
        self._credentials = (
            grpc.ssl_channel_credentials(*map(_content, (target.certificate, key, certificate)))
            if target.secure
            else None
        )
        self._connect()

    def send(self, payload: bytes) -> Outcome:
        """Send one request and wait for its answer, at most for the time limit; never raises."""
        try:
            response = self._call(payload, timeout=self.timeout_s, metadata=self._target.headers)
        except self._error as error:
            outcome = _grpc_outcome(error, is_secure=self._target.secure)
            if "DEADLINE_EXCEEDED" in outcome.reason:  # a connection to a machine that is gone breaks after 15 minutes
                self.close()
                self._connect()
            return outcome
        return _accepted(self._target.signal, response)

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def _connect(self) -> None:
        import grpc

        target = self._target
        options = [
            ("grpc.primary_user_agent", AGENT),
            ("grpc.max_reconnect_backoff_ms", RECONNECT_MS),
            ("grpc.use_local_subchannel_pool", 1),  # else all signals have one connection, and none can leave it
        ]
        compression = grpc.Compression.Gzip if target.gzip else grpc.Compression.NoCompression
        if self._credentials is None:
            self._channel = grpc.insecure_channel(target.endpoint, options, compression)
        else:
            self._channel = grpc.secure_channel(target.endpoint, self._credentials, options, compression)
        self._call: Callable[..., Any] = self._channel.unary_unary(
            f"/{SERVICES[target.signal]}/Export", response_deserializer=RESPONSES[target.signal].FromString
        )


class HttpClient:
    """OTLP over HTTP with protobuf; one kept connection."""

    def __init__(self, target: Target) -> None:
        import requests

        self._target = target
        self.timeout_s = target.timeout_s
        self._error: type[Exception] = requests.RequestException
        key, certificate = target.client_key, target.client_certificate
        self._certificate = (str(certificate), str(key)) if key else str(certificate) if certificate else None
        self._auth = _keep_headers if "authorization" in dict(target.headers) else None
        self._verify = str(target.certificate) if target.certificate else None
        self._session = self._new_session()

    def send(self, payload: bytes) -> Outcome:
        """Send one request on a thread that is given up after the time limit.

        ``requests`` limits each wait for the server, and not all of them together.
        """
        answers: SimpleQueue[Outcome] = SimpleQueue()

        def post(session: Any) -> None:
            with guard("send by HTTP"):
                answers.put(self._post(session, payload))

        Thread(target=post, args=(self._session,), name="otel_rl-http", daemon=True).start()
        try:
            return answers.get(timeout=self.timeout_s)
        except Empty:
            self._session.close()
            self._session = self._new_session()
            return Outcome("later", reason=TOO_LATE)

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def _new_session(self) -> Any:
        import requests

        session = requests.Session()
        session.headers.update(dict(self._target.headers))
        session.headers.update({"Content-Type": "application/x-protobuf", "User-Agent": AGENT})
        if self._target.gzip:
            session.headers["Content-Encoding"] = "gzip"
        return session

    def _post(self, session: Any, payload: bytes) -> Outcome:
        until = monotonic() + self.timeout_s
        data = gzip.compress(payload, 1) if self._target.gzip else payload
        try:
            response = session.post(
                self._target.endpoint,
                data=data,
                timeout=(self.timeout_s * FOR_ADDRESS, self.timeout_s),
                allow_redirects=False,
                verify=self._verify,  # of the session it would count less than REQUESTS_CA_BUNDLE
                cert=self._certificate,
                auth=self._auth,
                stream=True,
            )
            content = _read(response, until)
        except (self._error, ValueError) as error:  # the latter of a proxy's host, or of its password
            advice = UNUSABLE if isinstance(error, ValueError) else _tls_fault(error)  # its text may hold a password
            why = "" if advice else _os_error(error)
            return Outcome("later", reason=type(error).__name__ + (f", {why}" if why else ""), advice=advice)
        except OSError as error:  # a certificate or key is gone: it may be being replaced
            return Outcome("later", reason=type(error).__name__, advice=str(error)[:300])
        return Outcome("later", reason=TOO_LATE) if content is None else self._answered(response, content)

    def _answered(self, response: Any, content: bytes) -> Outcome:
        status = response.status_code
        if 200 <= status < 300:
            return _decoded(self._target.signal, content, response.headers.get("Content-Type", ""))
        reason = f"HTTP {status}"
        if status in LATER_HTTP:
            return Outcome("later", after_s=_seconds(response.headers.get("Retry-After", "")), reason=reason)
        if status == TOO_LARGE_HTTP:
            return Outcome("too_large", reason=reason)
        return Outcome("blocked" if status in BLOCKED_HTTP else "refused", reason=reason)


Client = GrpcClient | HttpClient


def connect(target: Target) -> Client:
    """Make the client of a target; nothing is sent yet."""
    return GrpcClient(target) if target.protocol == "grpc" else HttpClient(target)


def _read(response: Any, until: float) -> bytes | None:
    """Read an answer; None if it goes on after the time limit: it must keep neither the thread nor the connection."""
    content = bytearray()
    for byte in response.iter_content(1):
        content += byte
        if monotonic() > until:
            response.close()
            return None
    return bytes(content)


def _keep_headers(request: Any) -> Any:
    """Authenticate with nothing, so that a .netrc does not replace the header of the settings."""
    return request


def _os_error(error: BaseException | None) -> str:
    """Return what the operating system says of a connection that failed; the other texts may hold a password."""
    while error is not None and not (isinstance(error, OSError) and error.strerror):
        error = error.__cause__ or error.__context__
    return error.strerror if isinstance(error, OSError) and error.strerror else ""


def _tls_fault(error: BaseException | None) -> str:
    """Return what is wrong with TLS, if it is that; the outer errors show the URL, which may hold a token."""
    from ssl import SSLEOFError, SSLError

    while error is not None and not isinstance(error, SSLError):
        error = error.__cause__ or error.__context__
    is_outage = error is None or isinstance(error, SSLEOFError)  # the connection broke
    return "" if is_outage else f"TLS fails: {error}"[:300]


def _content(path: Path | None) -> bytes | None:
    return path.read_bytes() if path is not None else None


def _decoded(signal: Signal, content: bytes, kind: str) -> Outcome:
    """Read the answer to a request that was accepted; the page of a proxy or a login, with status 200, accepts nothing.

    Some servers answer with JSON or a word. They accepted the request, and would have it twice if it was sent again.
    """
    shown = kind.partition(";")[0][:80] or "of no type"
    advice = f"the answer is {shown} and not OTLP"
    is_page = bool(content) and kind.lower().startswith(HTML)
    with suppress(DecodeError):
        if not is_page:
            return _accepted(signal, RESPONSES[signal].FromString(content))
    if is_page or content.lstrip().startswith(b"<"):
        return Outcome("later", reason=f"HTTP 200, {shown}", advice=advice)
    return Outcome("accepted", advice=advice)


def _accepted(signal: Signal, response: Any) -> Outcome:
    partial = response.partial_success
    return Outcome("accepted", max(getattr(partial, REJECTED[signal]), 0), reason=partial.error_message[:200])


def _grpc_outcome(error: Any, *, is_secure: bool) -> Outcome:
    code = error.code().name
    reason = f"gRPC {code}"
    details = error.details() or ""
    if is_secure and code == "UNAVAILABLE" and TLS_GRPC.match(details):
        return Outcome("later", reason=f"{reason}, TLS", advice=f"TLS fails: {details}"[:300])
    if code in TOO_LARGE_CODES and TOO_LARGE_GRPC.search(details):
        return Outcome("too_large", reason=reason)
    if code in LATER_GRPC or any(text in details for text in BROKEN_GRPC):
        found = NO_HOST_GRPC.search(details)
        why = f", {found[1] or 'the host is not known'}" if found else ""
        return Outcome("later", after_s=_retry_delay(error), reason=reason + why)
    return Outcome("blocked" if code in BLOCKED_GRPC else "refused", reason=reason)


def _retry_delay(error: Any) -> float:
    """Read ``google.rpc.RetryInfo`` of an error, s; 0 if there is none."""
    from google.rpc.error_details_pb2 import RetryInfo
    from google.rpc.status_pb2 import Status

    info = RetryInfo()
    with suppress(DecodeError):
        for key, value in error.trailing_metadata() or ():
            if key == RETRY_INFO and any(detail.Unpack(info) for detail in Status.FromString(value).details):
                delay: float = info.retry_delay.seconds + info.retry_delay.nanos / 1e9
                return max(delay, 0.0)
    return 0.0


def _seconds(text: str) -> float:
    """Read ``Retry-After``: seconds, or a date; 0 where it is neither."""
    if text.strip().isdecimal():
        return float(text)
    try:
        return max((parsedate_to_datetime(text) - datetime.now(timezone.utc)).total_seconds(), 0.0)
    except (TypeError, ValueError):
        return 0.0
