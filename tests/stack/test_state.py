"""What `up` notes, and when it is believed."""

from __future__ import annotations

import json
import os
import stat
import threading
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from otel_rl.journal.identity import start_time
from otel_rl.stack import state
from otel_rl.stack.state import Damaged, Noted, Stack


def noted(pid: int = 0) -> Noted:
    """Note a process: this one, where no other is named."""
    pid = pid or os.getpid()
    return Noted("jaeger", "/bin/jaeger", pid, start_time(pid) or 7, 1.5, "http://127.0.0.1:1", 2, "/status")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """By this user alone; nothing else stays in the folder."""
    stack = Stack.here("programs", 3, (noted(), noted()))
    state.write(tmp_path, stack)
    assert (stack, ["stack.json"]) == (state.read(tmp_path), os.listdir(tmp_path))
    assert 0o600 == stat.S_IMODE((tmp_path / "stack.json").stat().st_mode)
    state.forget(tmp_path)
    assert state.read(tmp_path) is None
    state.forget(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"pid": 0},
        {"pid": -1},
        {"pid": "1"},
        {"pid": True},
        {"pid": 1.0},
        {"pid": None},
        {"start_time": None},
        {"name": 1},
        {"is_killed": "no"},
        {"more": 1},
    ],
)
def test_a_process_that_cannot_be_is_damage(tmp_path: Path, change: dict[str, Any]) -> None:
    """A pid of 0 or -1 would end every process of this user."""
    values = asdict(Stack.here("programs", 0, (noted(),)))
    values["parts"] = [values["parts"][0] | change]
    (tmp_path / "stack.json").write_text(json.dumps(values))
    with pytest.raises(Damaged, match=r"stack\.json is damaged$"):
        state.read(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"1", b"null", b"{}", b'{"parts": 1}', b'{"parts": [1]}', b"\xff", b"[" * 100_000]
)
def test_what_is_no_state_is_damage(tmp_path: Path, content: bytes) -> None:
    """Whatever a full disk or an editor left."""
    (tmp_path / "stack.json").write_bytes(content)
    with pytest.raises(Damaged):
        state.read(tmp_path)


def test_a_process_lives_when_pid_start_and_boot_are_those_that_were_noted() -> None:
    """The system gives pids again."""
    stack, me = Stack.here("programs", 0), noted()
    others = [replace(stack, boot_id="x"), replace(stack, pid_namespace="x")]
    assert [True, False, False, False] == [
        stack.is_alive(me),
        stack.is_alive(replace(me, start_time=me.start_time + 1)),
        *(other.is_alive(me) for other in others),
    ]


def test_a_stack_is_elsewhere_when_host_and_boot_are_others() -> None:
    """A host that got another name, or was started again, is the same."""
    stack = Stack.here("programs", 0)
    changed = [{"host": "x"}, {"boot_id": "x"}, {"host": "x", "boot_id": "x"}]
    assert [False, False, True] == [replace(stack, **change).is_elsewhere for change in changed]


def test_one_at_a_time(tmp_path: Path) -> None:
    """The second waits until the first is done."""
    order = []

    def second() -> None:
        with state.alone(tmp_path):
            order.append("second")

    thread = threading.Thread(target=second)
    with state.alone(tmp_path):
        thread.start()
        thread.join(0.2)
        order.append("first")
    thread.join()
    assert ["first", "second"] == order
