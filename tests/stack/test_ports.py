"""Who has a port."""

from __future__ import annotations

import os
import socket

import psutil
import pytest

from otel_rl.stack.ports import holder, taken


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::"])
def test_a_port_on_which_somebody_listens_is_taken(host: str) -> None:
    """On loopback, or on all interfaces; the holder is found by name."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind((host, 0))
        except OSError:
            pytest.skip("no IPv6 here")
        server.listen()
        port = server.getsockname()[1]
        assert ([port], f"{psutil.Process().name()} (pid {os.getpid()})") == (taken([port]), holder(port))
    assert ([], "") == (taken([port]), holder(port))


def test_a_port_of_a_connection_that_just_ended_is_free() -> None:
    """The programs can listen there, so nobody has to wait a minute between `down` and `up`."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = server.accept()
        accepted.close()
        client.close()
    assert [] == taken([port])


def test_a_holder_that_cannot_be_seen_has_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's."""

    def refuse(kind: str) -> None:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil, "net_connections", refuse)
    assert "" == holder(1)
