"""Which ports are taken, and by whom."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable
from typing import Final

LOOPBACK: Final = "127.0.0.1"


def taken(ports: Iterable[int]) -> list[int]:
    """List the TCP ports of the loopback interface on which nobody can listen any more."""
    return [port for port in ports if _is_taken(port)]


def _is_taken(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # as the programs do: what just ended does not count
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            return error.errno in {errno.EADDRINUSE, errno.EACCES}
    return False


def holder(port: int) -> str:
    """Say who listens on a TCP port, `otelcol (pid 12)`; empty where the system does not tell (another user's)."""
    import psutil

    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return ""
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
            try:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
            except psutil.Error:
                return f"pid {connection.pid}"
    return ""
