"""Whether a place that records are sent to can be reached: asked as the sidecar asks, without sending any record."""

from __future__ import annotations

import os
import re
import socket
import ssl
from contextlib import suppress
from ipaddress import ip_address, ip_network
from typing import Final, NamedTuple
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
GRPC_PROXY_PORT: Final = 443
HTTP_PROXY_PORTS: Final = {"http": 80, "https": 443}
SOCKS_PORT: Final = 1080
PROXY: Final = re.compile(r"(?:[^/?#]*//)?(?:[^/?#]*@)?([^/?#@]*)(?:[/?#][^@]*)?")
"""A proxy's address, with its host and port. With an ``@`` behind those they are the begin of a password."""


class Place(NamedTuple):
    """Where a proxy listens."""

    hostname: str
    port: int


def trouble(target: Target) -> str:
    """Say why a target does not take anything, as far as that is seen without a record; empty where it is not seen.

    Behind a proxy only that is tried.
    """
    try:
        by = proxy(target)
    except ValueError as error:  # never show it: it may hold a password
        is_socks = type(error).__name__ == "InvalidSchema"  # so requests says that it lacks a package
        why = "SOCKS needs the package PySocks" if is_socks else "no possible address: it takes http://host:port"
        return f"its proxy cannot be used ({why})"
    step = f"nobody answers at its proxy {by.hostname}" if by else "nobody answers"
    try:
        parts = _split(target.endpoint)
        place = by or (parts.hostname or "", parts.port or (443 if target.secure else 80))
        with socket.create_connection(place, ANSWER_S) as connection:
            if target.secure and not by:
                step = "TLS fails"
                _greet(target, _context(target).wrap_socket(connection, server_hostname=place[0]))
    except (OSError, ValueError) as error:  # the latter of a host's name with an empty or a long part
        return f"{step} ({_words(error)})"
    return ""


def proxy(target: Target) -> Place | None:
    """Find the proxy that the client of a target goes by; None without one.

    Raises:
        ValueError: the client goes by one that it cannot use. The message may hold a password.
    """
    return _proxy_of_grpc(target) if target.protocol == "grpc" else _proxy_of_http(target)


def _proxy_of_grpc(target: Target) -> Place | None:
    """Read what gRPC's core reads (1.85, http_proxy_mapper.cc): nothing in capitals."""
    named, spared = (
        next((os.environ[name] for name in names if name in os.environ), "") for names in (GRPC_PROXIES, GRPC_SPARED)
    )
    host = _split(target.endpoint).hostname or ""
    is_spared = any(_is_spared(host, entry.strip()) for entry in spared.lower().split(",") if entry.strip())
    if is_spared or not named.lower().startswith("http://") or not _host_and_port(named):
        return None
    return _place(named, GRPC_PROXY_PORT)


def _is_spared(host: str, entry: str) -> bool:
    """Whether an entry of ``no_proxy`` is a host, a domain above it, or a network with its address."""
    with suppress(ValueError):
        if "/" in entry:
            return ip_address(host) in ip_network(entry, strict=False)
    name = entry.removeprefix(".")
    return host == name or host.endswith(f".{name}")


def _proxy_of_http(target: Target) -> Place | None:
    """Ask the client itself, also whether it can use what it finds."""
    from requests.adapters import HTTPAdapter
    from requests.utils import get_environ_proxies, prepend_scheme_if_needed, select_proxy

    named = select_proxy(target.endpoint, get_environ_proxies(target.endpoint))
    if not named:
        return None
    place = _place(named, HTTP_PROXY_PORTS.get(_split(named, "http").scheme, SOCKS_PORT))
    HTTPAdapter().proxy_manager_for(prepend_scheme_if_needed(named, "http"))
    return place


def _place(address: str, port: int) -> Place:
    """Read where a proxy listens, at ``port`` if its address has none."""
    parts = _split(_host_and_port(address).strip())
    if not parts.hostname:
        raise ValueError("no host")
    return Place(parts.hostname, parts.port or port)


def _host_and_port(address: str) -> str:
    found = PROXY.fullmatch(address)
    if found is None:
        raise ValueError("an @ behind host and port")
    return found[1]


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
