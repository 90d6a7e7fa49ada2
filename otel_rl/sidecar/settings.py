"""Where to send, and how: the standard ``OTEL_EXPORTER_OTLP_*`` variables, a signal's own before the general ones."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

from otel_rl.config import ConfigurationError, may_be_key, not_possible, standard_boolean
from otel_rl.journal.frame import Signal

T = TypeVar("T")
Protocol = Literal["grpc", "http/protobuf"]
PREFIX: Final = "OTEL_EXPORTER_OTLP_"
SIGNALS: Final[tuple[Signal, ...]] = ("traces", "metrics", "logs")
GRPC_PORT: Final = 4317
HTTP_PORT: Final = 4318
HEADER: Final = re.compile(r"[a-z0-9_.-]+(?<!-bin)")
"""A name that both protocols take; one with -bin is encoded by gRPC."""
VALUE: Final = re.compile(r"[!-~]([ -~]*[!-~])?|")
HOST: Final = re.compile(r"@[^@/?#]*:\d")
"""A host behind the path's begin: that begin is the rest of a password with / as it is, and what is before it no host.
An @ alone may stand in a path or a query of HTTP."""
TIMEOUT_S: Final = 10.0
LONGEST_TIMEOUT_S: Final = (2**31 - 1) / 1000
"""What a socket can wait, 24 days; who asks for more means for ever."""


@dataclass(frozen=True)
class Target:
    """Where one signal goes."""

    signal: Signal
    protocol: Protocol
    endpoint: str = field(repr=False)
    """For HTTP the whole URL, with a password perhaps; for gRPC ``host:port``."""
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
        """The endpoint as one may print it: without user name, password and query, which may hold a token.

        With an ``@`` behind its host that may be the begin of a password, and nothing is shown.
        """
        parts = _split(self.endpoint)
        if "@" in "".join(parts[2:]):
            return f"{parts.scheme}://(hidden)"
        place = _bracketed(parts.hostname or "") + (f":{parts.port}" if parts.port else "")
        return f"{parts.scheme}://{place}{parts.path}" if parts.scheme else place


def targets(environ: Mapping[str, str] = os.environ) -> tuple[Target, ...]:
    """Read where each signal goes; none, where no endpoint is set.

    A signal whose ``OTEL_TRACES_EXPORTER`` (``METRICS``, ``LOGS``) is set to something without ``otlp`` is not sent.
    What is ``ignored`` has its default. Without the right place, headers and certificates nothing can be sent.

    Raises:
        ConfigurationError: a variable of these has a value that it cannot have.
    """
    found = []
    for signal in SIGNALS:
        chosen = environ.get(f"OTEL_{signal.upper()}_EXPORTER", "otlp").strip() or "otlp"
        if "otlp" in [name.strip().lower() for name in chosen.split(",")]:
            target = _target(signal, environ)
            if target is not None:
                found.append(target)
    return tuple(found)


def is_sent(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether any variable says where to send."""
    return any(name.startswith(PREFIX) and name.endswith("ENDPOINT") and environ[name].strip() for name in environ)


def ignored(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return each variable of how to send whose value is ignored, with what it takes and what is done without it.

    None counts where no endpoint is set: nothing is sent.
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
"""What has a default with which records can be sent."""


def _target(signal: Signal, environ: Mapping[str, str]) -> Target | None:
    own = environ.get(f"{PREFIX}{signal.upper()}_ENDPOINT", "").strip()
    endpoint = own or environ.get(f"{PREFIX}ENDPOINT", "").strip()
    if not endpoint:
        return None
    read = _Reader(signal, environ)
    try:
        parts = _split(endpoint)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        parts, host, port = _split(""), "", None
    protocol = read.protocol(port)
    if not host or _is_cut(parts, protocol) or parts.scheme not in ("", "http", "https"):  # it may hold a password
        raise ConfigurationError(
            f"{read.variable('ENDPOINT')} is not possible: it takes http://host:port or https://host:port, "
            "a password's / and @ as %2F and %40"
        )
    if protocol == "grpc":
        secure = parts.scheme == "https" or (not parts.scheme and not read.insecure())
        place = f"{_bracketed(host)}:{port or GRPC_PORT}"
    elif not parts.scheme:
        raise ConfigurationError(
            f"{read.variable('ENDPOINT')} is not possible: for HTTP it begins with http:// or https://"
        )
    else:
        secure = parts.scheme == "https"
        place = own or parts._replace(path=f"{parts.path.rstrip('/')}/v1/{signal}").geturl()
    authority, key, certificate = map(read.path, ("CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE"))
    if key and not certificate:
        raise ConfigurationError(
            f"{read.variable('CLIENT_KEY')} is not possible: it needs {read.variable('CLIENT_CERTIFICATE')}"
        )
    if secure:
        _check_certificates(read, authority, key, certificate)
    return Target(
        signal,
        protocol,
        place,
        secure,
        read.headers(),
        read.timeout(),
        read.gzip(),
        authority,
        key,
        certificate,
    )


def _is_cut(parts: SplitResult, protocol: Protocol) -> bool:
    """Whether what seems to be behind the host is the rest of a password: gRPC takes no path, which could have an @."""
    behind = "".join(parts[2:])
    is_password = protocol == "grpc" or "@" in parts.netloc or parts.netloc.endswith(":") or bool(HOST.search(behind))
    return "@" in behind and is_password


def _check_certificates(read: _Reader, authority: Path | None, key: Path | None, certificate: Path | None) -> None:
    """Load the files that TLS needs: with one that holds something else, the other side only seems to be down."""
    if not (authority or certificate):
        return
    from ssl import PROTOCOL_TLS_CLIENT, SSLContext

    context = SSLContext(PROTOCOL_TLS_CLIENT)
    for name, path in (("CERTIFICATE", authority), ("CLIENT_CERTIFICATE", certificate)):
        try:
            if path:
                context.load_verify_locations(path)
        except OSError as error:
            raise ConfigurationError(
                f"{read.shown(name)} is not possible: it holds no certificate in PEM that can be read"
            ) from error
    try:
        if certificate:
            context.load_cert_chain(certificate, key, password="")  # nobody is asked for one
    except OSError as error:
        raise ConfigurationError(
            f"{read.shown('CLIENT_KEY' if key else 'CLIENT_CERTIFICATE')} is not possible: it holds no key in PEM of "
            "the certificate, or one with a password"
        ) from error


def _split(endpoint: str) -> SplitResult:
    return urlsplit(endpoint if "//" in endpoint else f"//{endpoint}")


def _bracketed(host: str) -> str:
    """An IPv6 address stands in brackets in front of a port."""
    return f"[{host}]" if ":" in host else host


class _Reader:
    """Reads the variables of one signal."""

    def __init__(self, signal: Signal, environ: Mapping[str, str]) -> None:
        self._signal = signal
        self._environ = environ

    def variable(self, name: str) -> str:
        """The variable that counts: the signal's own, if it is set."""
        own = self._own(name)
        return own if self._environ.get(own, "").strip() else PREFIX + name

    def _own(self, name: str) -> str:
        return f"{PREFIX}{self._signal.upper()}_{name}"

    def text(self, name: str) -> str:
        return self._environ.get(self.variable(name), "").strip()

    def shown(self, name: str) -> str:
        """The variable and its value, to be printed and logged; without a value that may be a private key itself."""
        text = self.text(name)
        is_hidden = name == "CLIENT_KEY" or not text.isprintable() or may_be_key(text)
        return self.variable(name) if is_hidden else f"{self.variable(name)}={text!r}"

    def protocol(self, port: int | None) -> Protocol:
        """The protocol; where it is not said, that of the usual port: 4318 is HTTP."""
        usual: Protocol = "http/protobuf" if port == HTTP_PORT else "grpc"
        return self._how("PROTOCOL", usual)

    def headers(self) -> tuple[tuple[str, str], ...]:
        pairs = [item.partition("=") for item in self.text("HEADERS").split(",") if item.strip()]
        headers = tuple((unquote(key.strip()).lower(), unquote(value.strip())) for key, _, value in pairs)
        are_named = all(equals for _, equals, _ in pairs)
        if not are_named or not all(HEADER.fullmatch(key) and VALUE.fullmatch(value) for key, value in headers):
            raise ConfigurationError(  # never show them: they hold tokens
                f"{self.variable('HEADERS')} is not possible: it takes key=value,key=value, special characters as %20"
            )
        return headers

    def timeout(self) -> float:
        """Milliseconds, as the specification says."""
        return self._how("TIMEOUT", TIMEOUT_S)

    def gzip(self) -> bool:
        return self._how("COMPRESSION", default=False)

    def insecure(self) -> bool:
        return self._how("INSECURE", default=False)

    def _how(self, name: str, default: T) -> T:
        """Return what is set, by the signal's own variable or the general one; what is no value counts as not set."""
        for variable in (self._own(name), PREFIX + name):
            text = self._environ.get(variable, "").strip()
            with suppress(ValueError):
                if text:
                    value: T = HOW[name](text)
                    return value
        return default

    def path(self, name: str) -> Path | None:
        text = self.text(name)
        if text and not os.path.isfile(text):  # Path.is_file raises where it may not look or the name is too long
            raise ConfigurationError(
                f"{self.shown(name)} is not possible: it takes the path of a file, and there is no such file"
            )
        return Path(text) if text else None
