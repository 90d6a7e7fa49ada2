"""A time limit for a whole HTTP request: that of ``requests`` is for each single wait for the other side.

Whoever answers a header, a word of a header or a byte of a body now and then would hold a request for ever.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock, Timer
from typing import Any, Final

from requests.adapters import HTTPAdapter
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError
from urllib3.util.connection import allowed_gai_family

FOR_ADDRESS: Final = 1 / 3
"""Part of the limit for the connection to each of several addresses: two may be dead before one that answers."""
NUMERIC: Final = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
AT_ONCE: Final = struct.pack("ii", 1, 0)
"""``SO_LINGER``: what was not sent when a connection is closed is thrown away."""


class Deadline(HTTPAdapter):  # type: ignore[misc]  # requests has no types
    """Carries requests, one at a time, and cuts the connection of one that is not over in time."""

    def __init__(self, limit_s: float) -> None:
        """Prepare.

        Args:
            limit_s: how long a request may last.
        """
        super().__init__()
        self.is_over = False
        """The last request was not over in time."""
        self._limit_s = limit_s
        self._lock = Lock()
        self._socket: socket.socket | None = None
        """A second handle of the connection: TLS takes the first one away."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Cut the connection if the block, which sends one request, lasts too long. Cost: a thread."""
        self.is_over = False
        timer = Timer(self._limit_s, self._end)
        timer.daemon = True
        timer.start()
        is_answered = False
        try:
            yield
            is_answered = True
        finally:
            timer.cancel()
            timer.join()  # else it might cut the next request
            if self.is_over or not is_answered:
                self._throw_away()

    def get_connection_with_tls_context(self, *args: Any, **more: Any) -> Any:
        """See the connections that are made; ``requests`` documents this method for that."""
        pool: Any = super().get_connection_with_tls_context(*args, **more)
        kind = pool.ConnectionCls
        if not hasattr(kind, "deadline"):

            def connected(connection: Any) -> socket.socket:
                made = self._connected(kind, connection)  # before TLS, and before a proxy is asked
                self._see(made)
                return made

            pool.ConnectionCls = type(kind.__name__, (kind,), {"_new_conn": connected, "deadline": self})
        return pool

    def close(self) -> None:
        """Close all connections."""
        self._let_go()
        super().close()

    def _connected(self, kind: Any, connection: Any) -> socket.socket:
        """Connect as ``kind`` does, to the first address that answers; where there are several, in time for the next.

        Each takes the place of the host's name for that, so that nothing is looked up twice.
        """
        host, limit_s = connection._dns_host, connection.timeout  # ``host`` lacks the dot at the end of a whole name

        def connected(address: str) -> socket.socket:
            connection.host = address
            made: socket.socket = kind._new_conn(connection)
            made.settimeout(limit_s)
            return made

        *others, last = _addresses(connection) or [host]
        if others:
            connection.timeout = self._limit_s * FOR_ADDRESS
        try:
            for address in others:
                with suppress(ConnectTimeoutError, NewConnectionError):
                    return connected(address)
            return connected(last)
        finally:
            connection.host, connection.timeout = host, limit_s

    def _see(self, made: socket.socket) -> None:
        self._let_go()
        with self._lock:
            self._socket = made.dup()
        if self.is_over:
            self._cut()

    def _end(self) -> None:
        self.is_over = True
        self._cut()

    def _cut(self) -> None:
        with self._lock, suppress(OSError):  # the other side was faster
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)

    def _throw_away(self) -> None:
        """Close our handle, the last one, with what the system has not sent: it would hold up the next request."""
        with self._lock, suppress(OSError):  # the other side was faster
            if self._socket is not None:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        self._let_go()

    def _let_go(self) -> None:
        """Close our handle, so that the connection can end."""
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None


def _addresses(connection: Any) -> list[str]:
    """Look the host of a connection up; none where only a SOCKS proxy may, or where nobody knows it.

    The connection looks that one up itself, and says what is wrong with it. Cost: one look-up.
    """
    if hasattr(connection, "_socks_options"):
        return []
    host = connection._dns_host.strip("[]")
    with suppress(OSError, UnicodeError):
        found = socket.getaddrinfo(host, connection.port, allowed_gai_family(), socket.SOCK_STREAM)
        return [socket.getnameinfo(address, NUMERIC)[0] for *_, address in found]  # with the scope of a local one
    return []
