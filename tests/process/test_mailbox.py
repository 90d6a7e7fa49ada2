"""Messages of a sidecar reach the functions that listen in a training process, each once, and never harm it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_rl.guard import errors
from otel_rl.process import mailbox
from otel_rl.process.mailbox import Inbox, listen, listening, send
from otel_rl.process.memory import renew_all
from otel_rl.process.state import state
from tests.waiting import wait_for

ATTEMPT = "a" * 16


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of a run in which this process records, with an attempt that is known."""
    monkeypatch.setattr(mailbox, "LOOK_S", 0.01)
    monkeypatch.setattr(state, "directory", tmp_path)
    monkeypatch.setattr(state, "awake", True)
    state.inherit(attempt_id=ATTEMPT)
    yield tmp_path
    state.identify_anew()
    renew_all()


def test_each_message_is_heard_once(run: Path) -> None:
    """Also what was sent before, by any sidecar; not what another attempt or another listener gets."""
    heard: list[Any] = []
    send(run, "sidecar-0-1", "finding", ATTEMPT, {"rule": "before"})
    listen("finding", heard.append)
    send(run, "sidecar-0-2", "finding", ATTEMPT, {"rule": "after"})
    send(run, "sidecar-0-2", "finding", "b" * 16, {"rule": "of another attempt"})
    send(run, "sidecar-0-2", "stop", ATTEMPT, {"rule": "of another kind"})
    assert wait_for(lambda: len(heard) >= 2)
    send(run, "sidecar-0-1", "finding", ATTEMPT, {"rule": "last"})
    assert wait_for(lambda: {"rule": "last"} in heard)
    assert [{"rule": name} for name in ("after", "before", "last")] == sorted(heard, key=lambda one: one["rule"])


def test_one_who_listens_late_hears_all(run: Path) -> None:
    first: list[Any] = []
    second: list[Any] = []
    listen("finding", first.append)
    send(run, "sidecar-0-1", "finding", ATTEMPT, {"rule": "nan"})
    assert wait_for(lambda: first)
    listen("finding", second.append)
    assert wait_for(lambda: second)
    assert first == second == [{"rule": "nan"}]


@pytest.mark.guarded
@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_one_that_fails_is_logged_once_and_counted(
    run: Path, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    """The others are called all the same, and so is this one for what comes."""
    calls: list[Any] = []
    heard: list[Any] = []

    def fail(content: object) -> None:
        calls.append(content)
        raise error("mine")

    listen("finding", fail)
    listen("finding", heard.append)
    with caplog.at_level(logging.WARNING, "otel_rl"):
        for number in range(3):
            send(run, "sidecar-0-1", "finding", ATTEMPT, {"number": number})
        assert wait_for(lambda: len(heard) == 3)
    assert (3, 1, {"call the function that listens for findings": 3}) == (len(calls), len(caplog.records), dict(errors))


def test_the_end_of_the_recording_ends_the_thread(run: Path) -> None:
    listen("finding", print)
    thread = listening.thread
    assert thread is not None
    renew_all()
    assert wait_for(lambda: not thread.is_alive())
    assert ([], None) == (listening.listeners, listening.thread)


def test_nobody_listens_without_a_recording(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the flusher begins."""
    monkeypatch.setattr(state, "awake", False)
    listen("finding", print)
    before = listening.thread
    mailbox.start()
    assert (None, True) == (before, listening.thread is not None)


def test_what_is_no_message_is_skipped(tmp_path: Path) -> None:
    """Torn lines, other JSON, lines without an end until it comes, and one of more than a megabyte."""
    send(tmp_path, "sidecar-0-1", "finding", ATTEMPT, {"number": 1})
    file = tmp_path / mailbox.FOLDER / "sidecar-0-1.jsonl"
    inbox = Inbox()
    junk = b'{"kind": \n\xff\xfe\n[1]\n{"kind": 3}\n' + b"[" * 100_000 + b"\n{" + b"x" * (3 * mailbox.MOST_BYTES)
    with file.open("ab") as appended:
        appended.write(junk)
    send(tmp_path, "sidecar-0-1", "finding", ATTEMPT, {"number": 2})
    numbers = [content["number"] for _ in range(6) for _, content in inbox.new(tmp_path, ATTEMPT)]
    with file.open("ab") as appended:
        appended.write(b'{"kind":"finding","attempt":"%s",' % ATTEMPT.encode())
    early = list(inbox.new(tmp_path, ATTEMPT))
    with file.open("ab") as appended:
        appended.write(b'"content":{"number":3}}\n')
    numbers += [content["number"] for _, content in inbox.new(tmp_path, ATTEMPT)]
    assert ([1, 2, 3], []) == (numbers, early)


def test_a_disk_that_is_full_is_an_error_of_the_sender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", lambda number, data: len(data) - 1)
    with pytest.raises(OSError, match="No space left"):
        send(tmp_path, "sidecar-0-1", "finding", ATTEMPT, {})
