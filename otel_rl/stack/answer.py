"""Whether a part of the stack answers."""

from __future__ import annotations

from http.client import HTTPConnection, HTTPException
from typing import Final

from otel_rl.stack.ports import LOOPBACK

TIMEOUT_S: Final = 2.0


def answers(port: int, path: str) -> bool:
    """Ask a health endpoint on loopback, past every proxy that the environment names; 503 means: not yet well."""
    connection = HTTPConnection(LOOPBACK, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status < 500
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
