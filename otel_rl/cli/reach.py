"""Whether a place that records are sent to can be reached: asked as the sidecar asks, without sending any record."""

from __future__ import annotations

import os
import socket
import ssl
from typing import Final
from urllib.parse import urlsplit

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


def trouble(target: Target) -> str:
    """Say why a target does not take anything, as far as that is seen without a record; empty where it is not seen."""
    parts = urlsplit(target.endpoint if "//" in target.endpoint else f"//{target.endpoint}")
    host, port = parts.hostname or "", parts.port or (443 if target.secure else 80)
    step = "nobody answers"
    try:
        with socket.create_connection((host, port), ANSWER_S) as connection:
            step = "TLS fails"
            if target.secure:
                _greet(target, _context(target).wrap_socket(connection, server_hostname=host))
    except (OSError, UnicodeError) as error:  # the latter of a host's name with an empty or a long part
        return f"{step} ({_words(error)})"
    return ""


def _context(target: Target) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
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


def _words(error: OSError | UnicodeError) -> str:
    if isinstance(error, UnicodeError):
        return "no possible name of a host"
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    return error.strerror or str(error) or type(error).__name__
