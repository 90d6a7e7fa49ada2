"""The stacks of a process that are appended to its status page: by the flusher, and in C by a signal."""

from __future__ import annotations

import asyncio
import errno
import faulthandler
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import otel_rl
from otel_rl.guard import errors
from otel_rl.journal.page import ANSWERED, ASKED, SIGNAL, SIZE, Page
from otel_rl.probes import c_stacks
from otel_rl.probes.c_stacks import DUMP_SIGNAL
from otel_rl.probes.python_stacks import catches
from tests.fixtures import Recording, in_child
from tests.flusher.test_status_page import look
from tests.programs.launch import run
from tests.waiting import patience

ME = os.getpid()
in_c = pytest.mark.skipif(c_stacks.native is None or not DUMP_SIGNAL, reason="no compiler where otel_rl was installed")


@pytest.fixture
def words(recording: Recording) -> Any:
    """The words of the page, as another process would write them."""
    otel_rl.flush()
    page = recording.flusher.dispatcher.page._page
    assert page is not None
    return page.words


def appended(recording: Recording) -> str:
    """Let the flusher work, and read what is behind the page."""
    view = look(recording)
    return view.memory.read_bytes()[SIZE:].decode()


def test_who_asks_gets_the_stacks_of_all_threads(recording: Recording, words: Any) -> None:
    """With function, file and line, once for each question; threads of ours are left out."""
    gone = threading.Event()

    def work_of_a_thread() -> None:
        gone.wait(60)

    thread = threading.Thread(target=work_of_a_thread, name="loader")
    thread.start()
    before = appended(recording)
    words[ASKED] = 5
    text = appended(recording)
    again = appended(recording)
    gone.set()
    thread.join()
    line = work_of_a_thread.__code__.co_firstlineno + 1
    of_loader = text[text.index("Thread loader") :]
    assert ("", 5, text) == (before, words[ANSWERED], again)
    assert f'  File "{__file__}", line {line} in work_of_a_thread\n' in of_loader
    assert f'  File "{__file__}", ' in text[: text.index("Thread loader")]
    assert text.startswith("Thread MainThread\n")
    assert "otel_rl-" not in text


def test_tasks_of_asyncio_are_among_the_stacks(recording: Recording, words: Any) -> None:
    """What a task waits in, the innermost first, by the task's name."""

    async def asks_an_engine() -> None:
        await asyncio.sleep(60)

    async def rollout() -> None:
        await asks_an_engine()

    async def main() -> str:
        task = asyncio.create_task(rollout(), name="rollout 7")
        await asyncio.sleep(0)
        words[ASKED] += 1
        text = appended(recording)
        task.cancel()
        return text

    text = asyncio.run(main())
    (part,) = [one for one in text.split("Task ") if one.startswith("rollout 7")]
    names = [line.rpartition(" in ")[2] for line in part.splitlines()[1:]]
    assert ["sleep", "asks_an_engine", "rollout"] == names


@in_c
def test_a_signal_appends_the_stacks_in_c(recording: Recording, words: Any) -> None:
    """So also while the interpreter is held; after the end of the recording the process takes it no more."""
    assert (DUMP_SIGNAL, True) == (words[SIGNAL], catches(ME, DUMP_SIGNAL))
    os.kill(ME, DUMP_SIGNAL)
    text = appended(recording)
    recording.stop()
    assert "test_a_signal_appends_the_stacks_in_c" in text
    assert not catches(ME, DUMP_SIGNAL)


@in_c
@pytest.mark.parametrize("kind", ["python", "ignored", "faulthandler"])
def test_a_handler_of_the_host_is_left_alone(stubbed: Recording, tmp_path: Path, kind: str) -> None:
    """The page says that this process takes no signal of ours."""
    got: list[int] = []
    with open(tmp_path / "theirs", "w+", encoding="utf-8") as theirs:
        if kind == "faulthandler":
            faulthandler.register(DUMP_SIGNAL, file=theirs)
        before = signal.getsignal(DUMP_SIGNAL)
        if kind != "faulthandler":
            signal.signal(
                DUMP_SIGNAL, (lambda number, frame: got.append(number)) if kind == "python" else signal.SIG_IGN
            )
        try:
            recording = stubbed.start()
            assert 0 == look(recording).signal
            os.kill(ME, DUMP_SIGNAL)
            recording.stop()
            os.kill(ME, DUMP_SIGNAL)
            least, found = {"python": 2, "ignored": 0, "faulthandler": 2}[kind], 0
            for _ in patience():  # another thread may get the signal, a moment later
                theirs.seek(0)
                found = len(got) or theirs.read().count("(most recent call first)")
                if least <= found:
                    break
            assert least <= found
        finally:
            faulthandler.unregister(DUMP_SIGNAL)
            signal.signal(DUMP_SIGNAL, before)


@in_c
def test_a_file_that_the_host_registers_later_gets_the_stacks(recording: Recording, words: Any, tmp_path: Path) -> None:
    """And the page does not: faulthandler knows one file for each signal."""
    with open(tmp_path / "theirs", "w+", encoding="utf-8") as theirs:
        faulthandler.register(DUMP_SIGNAL, file=theirs)
        os.kill(ME, DUMP_SIGNAL)
        theirs.seek(0)
        assert "test_a_file_that_the_host_registers_later" in theirs.read()
    assert "" == appended(recording)


@in_c
def test_no_descriptor_is_kept_for_the_stacks(recording: Recording, words: Any) -> None:
    """A program that closes all of them gets its stacks all the same, and no file of its own is written."""
    memory = str(look(recording).memory)
    kept = [path for name in os.listdir("/proc/self/fd") if memory == (path := _path_of(name))]
    os.kill(ME, DUMP_SIGNAL)
    assert ([], True) == (kept, "test_no_descriptor_is_kept_for_the_stacks" in appended(recording))


def _path_of(name: str) -> str:
    """Return what a descriptor is; that of the list itself is closed."""
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        return ""


@in_c
def test_a_number_that_the_program_took_is_not_written_to(
    recording: Recording, words: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Then there are no stacks in C."""
    number = 100 + max(map(int, os.listdir("/proc/self/fd")))  # no other is open beside it
    recording.stop()
    monkeypatch.setattr(c_stacks, "HIGHEST", number)
    recording.start()
    otel_rl.flush()
    theirs = os.open(tmp_path / "theirs", os.O_CREAT | os.O_RDWR)
    os.dup2(theirs, number)
    os.kill(ME, DUMP_SIGNAL)
    os.close(number)
    shown = appended(recording)
    os.kill(ME, DUMP_SIGNAL)
    assert (b"", "", True) == (os.pread(theirs, 9, 0), shown, bool(appended(recording)))
    os.close(theirs)


@in_c
def test_the_flusher_has_no_alternate_stack_of_faulthandler(tmp_path: Path) -> None:
    """The main thread has it, which would need it in a stack overflow: a thread takes it along when it ends."""
    code = """
import ctypes, threading
import otel_rl
from otel_rl import entry

class Stack(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]

def has_stack():
    stack = Stack()
    ctypes.CDLL(None).sigaltstack(None, ctypes.byref(stack))
    return bool(stack.size)

otel_rl.instrument()
otel_rl.flush()
found = [has_stack()]
update = entry._parts.flusher.dispatcher.page.update
entry._parts.flusher.dispatcher.page.update = lambda *given: (update(*given), found.append(has_stack()))
otel_rl.flush(60)
otel_rl.uninstrument()
print(found[:2])
"""
    assert "[True, False]\n" == run(tmp_path, "-c", code)


@in_c
def test_a_handler_that_the_host_sets_later_stays(recording: Recording, words: Any) -> None:
    """From then on nobody sends the signal."""
    got: list[int] = []
    before = signal.getsignal(DUMP_SIGNAL)
    signal.signal(DUMP_SIGNAL, lambda number, frame: got.append(number))
    try:
        assert 0 == look(recording).signal
        recording.stop()
        os.kill(ME, DUMP_SIGNAL)
        assert [DUMP_SIGNAL] == got
    finally:
        faulthandler.unregister(DUMP_SIGNAL)  # it takes itself for registered, and would not register for another test
        signal.signal(DUMP_SIGNAL, before)


def test_stacks_for_which_the_disk_has_no_room_cost_the_stacks_only(
    recording: Recording, words: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page goes on, and who asked tries otherwise."""

    def full(page: Page, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Page, "append", full)
    words[ASKED] = 5
    with otel_rl.step(1), otel_rl.stage("long"):
        view = look(recording)
    assert (5, True, {}) == (words[ANSWERED], "long" in {row["name"] for row in view.open}, dict(errors))


def test_a_forked_child_leaves_the_page_to_its_parent(recording: Recording, words: Any) -> None:
    """What it records is on no page of the parent; its handler in C stays, for a parent that waits for it."""
    with otel_rl.step(3), otel_rl.stage("outer"):
        view = look(recording)
        before = view.memory.read_bytes()

        def work() -> None:
            assert catches(os.getpid(), DUMP_SIGNAL) == bool(words[SIGNAL])
            with otel_rl.stage("of the child"):
                pass
            os.write(channel[1], b"well")

        channel = os.pipe()
        in_child(work)
        os.close(channel[1])
        assert (b"well", before) == (os.read(channel[0], 9), view.memory.read_bytes())
        os.close(channel[0])
