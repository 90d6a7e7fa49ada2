"""What runs: the file that says it, who lives, and who has a port."""

from __future__ import annotations

import os
import socket
import stat
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from otel_rl.journal.identity import start_time
from otel_rl.stack.processes import RunningProgram, RunningStack, forget, holder, load, save, used_ports

UNKNOWN = "a program that this user cannot see"


def this_process() -> RunningProgram:
    return RunningProgram("jaeger", os.getpid(), start_time(os.getpid()) or 7, 1.5, "http://127.0.0.1:1", 2, "/status")


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    """By this user alone; nothing else stays in the folder."""
    stack = RunningStack.here(3, (this_process(), this_process()))
    save(tmp_path, stack)
    assert (stack, ["stack.json"]) == (load(tmp_path), os.listdir(tmp_path))
    assert 0o600 == stat.S_IMODE((tmp_path / "stack.json").stat().st_mode)
    forget(tmp_path)
    assert load(tmp_path) is None
    forget(tmp_path)


def test_a_process_lives_if_pid_start_and_boot_are_the_same() -> None:
    """The system gives pids again."""
    stack, me = RunningStack.here(0), this_process()
    others = [replace(stack, boot_id="x"), replace(stack, pid_namespace="x")]
    assert [True, False, False, False] == [
        stack.is_alive(me),
        stack.is_alive(replace(me, start_time=me.start_time + 1)),
        *(other.is_alive(me) for other in others),
    ]


def test_a_stack_is_elsewhere_when_host_and_boot_are_others() -> None:
    """A host that got another name, or was started again, is the same."""
    stack = RunningStack.here(0)
    changed = [{"host": "x"}, {"boot_id": "x"}, {"host": "x", "boot_id": "x"}]
    assert [False, False, True] == [replace(stack, **change).is_elsewhere for change in changed]


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
        assert ([port], f"{psutil.Process().name()} (pid {os.getpid()})") == (used_ports([port]), holder(port))
    assert ([], UNKNOWN) == (used_ports([port]), holder(port))


def test_a_port_of_a_connection_that_just_ended_is_free() -> None:
    """The programs can listen there, so nobody has to wait a minute between `down` and `up`."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = server.accept()
        accepted.close()
        client.close()
    assert [] == used_ports([port])


def test_a_holder_that_cannot_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's."""

    def refuse(kind: str) -> None:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil, "net_connections", refuse)
    assert UNKNOWN == holder(1)
