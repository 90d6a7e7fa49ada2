"""Where to send, and how: the standard ``OTEL_EXPORTER_OTLP_*`` variables, a signal's own before the general ones."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import SplitResult, unquote, urlsplit

from otel_rl.config import FOREIGN, ConfigurationError, not_possible
from otel_rl.config.parsers import standard_boolean
from otel_rl.journal.frame import Signal

Protocol = Literal["grpc", "http/protobuf"]
PREFIX: Final = "OTEL_EXPORTER_OTLP_"
SIGNALS: Final[tuple[Signal, ...]] = ("traces", "metrics", "logs")
GRPC_PORT: Final = 4317
HTTP_PORT: Final = 4318
HEADER: Final = re.compile(r"[a-z0-9_.-]+(?<!-bin)")
"""A name that both protocols take; one with -bin is encoded by gRPC."""
VALUE: Final = re.compile(r"[!-~]([ -~]*[!-~])?|")
TIMEOUT_S: Final = 10.0
LONGEST_TIMEOUT_S: Final = (2**31 - 1) / 1000
"""The longest that a socket can wait: 24 days."""


@dataclass(frozen=True)
class Target:
    """Where one signal goes."""

    signal: Signal
    protocol: Protocol
    endpoint: str = field(repr=False)
    """The whole URL for HTTP, perhaps with a password; ``host:port`` for gRPC."""
    secure: bool
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Often a secret: never shown."""
    timeout_s: float = TIMEOUT_S
    gzip: bool = False
    certificate: Path | None = None
    client_key: Path | None = field(default=None, repr=False)
    client_certificate: Path | None = None

    @property
    def shown(self) -> str:
        """Return the endpoint as one may print it: without user name, password and query, which may hold a token."""
        parts = _split(self.endpoint)
        address = _bracketed(parts.hostname or "") + (f":{parts.port}" if parts.port else "")
        return f"{parts.scheme}://{address}{parts.path}" if parts.scheme else address


def targets(environ: Mapping[str, str] = os.environ) -> tuple[Target, ...]:
    """Read where each signal goes; none if no endpoint is set.

    A signal whose ``OTEL_TRACES_EXPORTER`` (``METRICS``, ``LOGS``) is set to something without ``otlp`` is not sent.
    What is ``ignored`` has its default. Without the right address, headers and certificates nothing can be sent.

    Raises:
        ConfigurationError: one of these variables has an invalid value.
    """
    found, environ = [], _without_foreign(environ)
    for signal in SIGNALS:
        chosen = environ.get(f"OTEL_{signal.upper()}_EXPORTER", "otlp").strip() or "otlp"
        if "otlp" in [name.strip().lower() for name in chosen.split(",")]:
            target = _target(_Variables(signal, environ))
            if target is not None:
                found.append(target)
    return tuple(found)


def is_sent(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether any variable says where to send."""
    own = _without_foreign(environ)
    return any(name.startswith(PREFIX) and name.endswith("ENDPOINT") and own[name].strip() for name in own)


def _without_foreign(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Leave out an endpoint that the program has made for its own telemetry after it started."""
    foreign = environ.get(FOREIGN)
    return {name: value for name, value in environ.items() if value != foreign} if foreign else environ


def ignored(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables of sending whose value is ignored, each with what it takes and what is done without it.

    None counts if no endpoint is set: nothing is sent.
    """
    if not is_sent(environ):
        return {}
    own = ("", *(f"{signal.upper()}_" for signal in SIGNALS))
    parsers = {f"{PREFIX}{signal}{name}": parse for name, parse in HOW.items() for signal in own}
    wrong = not_possible(parsers, environ)
    return {variable: f"it takes {allowed}; its default is used" for variable, allowed in wrong.items()}


def _protocol(text: str) -> Protocol:
    if text.lower() == "grpc":
        return "grpc"
    if text.lower() == "http/protobuf":
        return "http/protobuf"
    raise ValueError("grpc or http/protobuf")


def _timeout_s(text: str) -> float:
    milliseconds = float(text) if text.isascii() and text.isdigit() else 0.0  # no int: that refuses 5,000 digits
    if not milliseconds:
        raise ValueError("milliseconds, a whole number above 0")
    return min(milliseconds / 1000, LONGEST_TIMEOUT_S)


def _gzip(text: str) -> bool:
    if text.lower() not in ("none", "gzip"):
        raise ValueError("gzip or none")
    return text.lower() == "gzip"


HOW: Final[dict[str, Callable[[str], Any]]] = {
    "PROTOCOL": _protocol,
    "TIMEOUT": _timeout_s,
    "COMPRESSION": _gzip,
    "INSECURE": standard_boolean,
}
"""Settings whose default is enough to send records."""


class _Variables:
    """Reads the variables of one signal."""

    def __init__(self, signal: Signal, environ: Mapping[str, str]) -> None:
        self.signal = signal
        self._environ = environ

    def own(self, name: str) -> str:
        return self._environ.get(f"{PREFIX}{self.signal.upper()}_{name}", "").strip()

    def text(self, name: str) -> str:
        return self.own(name) or self._environ.get(PREFIX + name, "").strip()

    def how(self, name: str, default: Any) -> Any:
        """Return what is set, by the signal's own variable or the general one; an invalid value counts as not set."""
        for text in (self.own(name), self._environ.get(PREFIX + name, "").strip()):
            with suppress(ValueError):
                if text:
                    return HOW[name](text)
        return default

    def error(self, name: str, why: str) -> ConfigurationError:
        """Return the error that names a variable, and never shows its value: it may be a secret."""
        variable = f"{PREFIX}{self.signal.upper()}_{name}" if self.own(name) else PREFIX + name
        return ConfigurationError(f"{variable} is not possible: {why}")

    def headers(self) -> tuple[tuple[str, str], ...]:
        pairs = [item.partition("=") for item in self.text("HEADERS").split(",") if item.strip()]
        headers = tuple((unquote(key.strip()).lower(), unquote(value.strip())) for key, _, value in pairs)
        are_named = all(equals for _, equals, _ in pairs)
        if not are_named or not all(HEADER.fullmatch(key) and VALUE.fullmatch(value) for key, value in headers):
            raise self.error("HEADERS", "it takes key=value,key=value, special characters as %20")
        return headers

    def path(self, name: str) -> Path | None:
        text = self.text(name)
        if text and not os.path.isfile(text):  # Path.is_file raises if the name is too long
            raise self.error(name, "it takes the path of a file, and there is no such file")
        return Path(text) if text else None


def _target(read: _Variables) -> Target | None:
    endpoint = read.text("ENDPOINT")
    if not endpoint:
        return None
    try:
        parts = _split(endpoint)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        parts, host, port = _split(""), "", None
    is_cut = "@" in "".join(parts[2:])  # the end of a password with / or ?
    if not host or is_cut or parts.scheme not in ("", "http", "https"):
        why = "it takes http://host:port or https://host:port, a password's / and @ as %2F and %40"
        raise read.error("ENDPOINT", why)
    protocol: Protocol = read.how("PROTOCOL", "http/protobuf" if port == HTTP_PORT else "grpc")
    secure = parts.scheme == "https"
    if protocol == "grpc":
        secure = secure or not (parts.scheme or read.how("INSECURE", default=False))
        address = f"{_bracketed(host)}:{port or GRPC_PORT}"
    elif not parts.scheme:
        raise read.error("ENDPOINT", "for HTTP it begins with http:// or https://")
    else:
        path = f"{parts.path.rstrip('/')}/v1/{read.signal}"
        address = read.own("ENDPOINT") or parts._replace(path=path).geturl()
    authority, key, certificate = map(read.path, ("CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE"))
    if key and not certificate:
        raise read.error("CLIENT_KEY", "it needs the client's certificate, too")
    if secure:
        _check_certificates(read, authority, key, certificate)
    timeout_s, gzip = read.how("TIMEOUT", TIMEOUT_S), read.how("COMPRESSION", default=False)
    return Target(read.signal, protocol, address, secure, read.headers(), timeout_s, gzip, authority, key, certificate)


def _check_certificates(read: _Variables, authority: Path | None, key: Path | None, certificate: Path | None) -> None:
    """Load the files that TLS needs: with a wrong one the server would only seem to be down."""
    from ssl import PROTOCOL_TLS_CLIENT, SSLContext  # trainers read these settings too, and do without it

    context = SSLContext(PROTOCOL_TLS_CLIENT)
    try:
        if authority:
            context.load_verify_locations(authority)
    except OSError as error:
        raise read.error("CERTIFICATE", "it holds no certificate in PEM that can be read") from error
    try:
        if certificate:
            context.load_cert_chain(certificate, key, password="")  # none is asked for
    except OSError as error:
        why = "it holds no certificate in PEM, or there is no key to it without a password"
        raise read.error("CLIENT_CERTIFICATE", why) from error


def _split(endpoint: str) -> SplitResult:
    return urlsplit(endpoint if "//" in endpoint else f"//{endpoint}")


def _bracketed(host: str) -> str:
    """Return a host as it stands before a port: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host
