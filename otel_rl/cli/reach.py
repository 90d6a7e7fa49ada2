"""Whether a place that records are sent to can be reached: asked as the sidecar asks, without sending any record."""

from __future__ import annotations

import os
import socket
import ssl
from contextlib import suppress
from ipaddress import ip_address, ip_network
from typing import Final
from urllib.parse import SplitResult, urlsplit

from otel_rl.sidecar.settings import Protocol, Target

ANSWER_S = 2.0
ROOTS: Final[dict[Protocol, tuple[str, ...]]] = {
    "grpc": ("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",),
    "http/protobuf": ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
}
"""Whom the two clients trust where no certificate is set; without these variables, Mozilla's list."""
ALPN: Final[dict[Protocol, str]] = {"grpc": "h2", "http/protobuf": "http/1.1"}
HELLO: Final[dict[Protocol, bytes]] = {
    "grpc": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0",  # and no settings
    "http/protobuf": b"OPTIONS * HTTP/1.0\r\n\r\n",
}

GRPC_PROXIES: Final = ("grpc_proxy", "https_proxy", "http_proxy")
GRPC_SPARED: Final = ("no_grpc_proxy", "no_proxy")
"""Of each the first that is set counts, also where it is empty."""


def trouble(target: Target) -> str:
    """Say why a target does not take anything, as far as that is seen without a record; empty where it is not seen.

    Behind a proxy only that is tried.
    """
    by = proxy(target)
    parts = by or _split(target.endpoint)
    step = f"nobody answers at its proxy {by.hostname}" if by else "nobody answers"
    try:
        place = parts.hostname or "", parts.port or (443 if (parts.scheme == "https" if by else target.secure) else 80)
        with socket.create_connection(place, ANSWER_S) as connection:
            if target.secure and not by:
                step = "TLS fails"
                _greet(target, _context(target).wrap_socket(connection, server_hostname=place[0]))
    except (OSError, ValueError) as error:  # the latter of a host's name with an empty or a long part, or of a port
        return f"{step} ({_words(error)})"
    return ""


def proxy(target: Target) -> SplitResult | None:
    """Give the address of the proxy that the client of a target goes by, None without one; it may hold a password."""
    found = _proxy_of_grpc(target) if target.protocol == "grpc" else _proxy_of_http(target)
    return _split(found, "http") if found else None


def _proxy_of_grpc(target: Target) -> str:
    """Read what gRPC's core reads (1.85, http_proxy_mapper.cc): nothing in capitals."""
    named, spared = (
        next((os.environ[name] for name in names if name in os.environ), "") for names in (GRPC_PROXIES, GRPC_SPARED)
    )
    host = _split(target.endpoint).hostname or ""
    is_spared = any(_is_spared(host, entry.strip()) for entry in spared.lower().split(",") if entry.strip())
    return "" if is_spared or not named.startswith("http://") else named


def _is_spared(host: str, entry: str) -> bool:
    """Whether an entry of ``no_proxy`` is the end of a host's name, or a network with its address."""
    with suppress(ValueError):
        if "/" in entry:
            return ip_address(host) in ip_network(entry, strict=False)
    return host.endswith(entry)


def _proxy_of_http(target: Target) -> str:
    from requests.utils import get_environ_proxies, select_proxy

    return select_proxy(target.endpoint, get_environ_proxies(target.endpoint)) or ""


def _split(address: str, scheme: str = "") -> SplitResult:
    return urlsplit(address if "//" in address else f"//{address}", scheme)


def _context(target: Target) -> ssl.SSLContext:
    """Make the context of the target's client: that of gRPC ends a chain at any certificate that it is given."""
    if target.protocol == "grpc":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    else:
        from urllib3.util import create_urllib3_context

        context = create_urllib3_context()
        context.check_hostname = True  # urllib3 1.26 leaves that to itself
    context.set_alpn_protocols([ALPN[target.protocol]])
    found = [os.environ[name] for name in ROOTS[target.protocol] if os.environ.get(name)]
    roots = str(target.certificate or next(iter(found), "") or _mozilla())
    is_folder = os.path.isdir(roots)
    context.load_verify_locations(None if is_folder else roots, roots if is_folder else None)
    if target.client_certificate:
        context.load_cert_chain(target.client_certificate, target.client_key, password="")  # nobody is asked for one
    return context


def _mozilla() -> str:
    from requests.certs import where

    return str(where())


def _greet(target: Target, connection: ssl.SSLSocket) -> None:
    """Wait for the first byte of an answer: in TLS 1.3 a server refuses a client only after the handshake."""
    with connection:
        connection.sendall(HELLO[target.protocol])
        if not connection.recv(1):
            raise ConnectionAbortedError("it ended the connection")


def _words(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):  # a ValueError too
        return error.verify_message
    if isinstance(error, UnicodeError):
        return "no possible name of a host"
    if isinstance(error, ValueError):  # never show it: it may hold a password
        return "no possible address"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    return error.strerror or str(error) or type(error).__name__
