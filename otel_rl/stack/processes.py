"""Start, watch and stop the programs of the stack."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from otel_rl.journal.identity import start_time
from otel_rl.stack.answer import answers
from otel_rl.stack.plan import Part, environment
from otel_rl.stack.problem import StackError
from otel_rl.stack.row import ANSWERS
from otel_rl.stack.state import Noted, Stack

WAIT_S = 120.0
"""How long a part may take until it answers: a Prometheus with much data reads it first."""
STOP_S = 10.0
"""How long a part may take to end after SIGTERM."""
GONE_S: Final = 10.0
"""How long the system may take to end a part after SIGKILL."""
LOOK_S: Final = 0.1
LAST_LINES: Final = 4
ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Show = Callable[[str, str], None]
"""Told the name of a part and what it does now."""


def log_of(folder: Path, name: str) -> Path:
    """Where a part's output goes."""
    return folder / f"{name}.log"


def start(part: Part, folder: Path) -> Noted:
    """Start a program: in a session of its own, so that neither a terminal nor our end is the end of it.

    Raises:
        StackError: it cannot be started, or was gone at once.
    """
    with open(log_of(folder, part.name), "wb", opener=_private) as log:
        try:
            process = subprocess.Popen(
                part.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(part),
                cwd=folder,
                start_new_session=True,
            )
        except OSError as error:
            raise StackError(f"{part.command[0]} cannot be started: {error.strerror}") from None
    process.returncode = 0  # it outlives us, which Popen would otherwise warn of
    ticks = start_time(process.pid)
    if ticks is None:
        raise _died(part.name, process.pid, folder)
    return Noted(
        name=part.name,
        program=part.command[0],
        pid=process.pid,
        start_time=ticks,
        started_s=time.time(),
        address=part.address,
        health_port=part.health_port,
        health_path=part.health_path,
        is_killed=part.is_killed,
    )


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Keep the signals that would end us, and take them afterwards: between a start and its note nothing may come.

    By handlers: a mask is a thread's own, so another thread (of a progress display) would get the signal, and Python
    handle it in the main thread even so. A program that is started does not inherit them, and what is ignored stays so.
    Python handles no signals in other threads, so nothing is kept there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {}
    try:
        for number in ENDING:
            if signal.getsignal(number) not in {signal.SIG_IGN, None}:
                before[number] = signal.signal(number, lambda late, _: came.append(late))
        yield
    finally:
        for number, handler in reversed(before.items()):
            signal.signal(number, handler)
        for late in came:
            signal.raise_signal(late)


def wait(stack: Stack, folder: Path, show: Show) -> None:
    """Wait until every part answers.

    Raises:
        StackError: one ended, or did not answer in time.
    """
    deadline = time.monotonic() + WAIT_S
    waiting = list(stack.parts)
    while waiting:
        for part in stack.parts:
            if not stack.is_alive(part):
                raise _died(part.name, part.pid, folder)
        for part in [part for part in waiting if answers(part.health_port, part.health_path)]:
            waiting.remove(part)
            show(part.name, ANSWERS)
        if waiting and time.monotonic() > deadline:
            name = waiting[0].name
            raise StackError(
                f"{name} runs and did not answer on port {waiting[0].health_port} within {WAIT_S:.0f} s; its log is "
                f"{log_of(folder, name)}",
                last_lines(log_of(folder, name)),
            )
        if waiting:
            time.sleep(LOOK_S)


def stop(stack: Stack, parts: Iterable[Noted]) -> list[Noted]:
    """End parts together: SIGTERM, and SIGKILL to those that are still there after ``STOP_S``.

    Returns:
        Those that live even so: of another user, or held by the kernel.
    """
    living = [part for part in parts if stack.is_alive(part)]
    for part in living:
        _signal(part, signal.SIGKILL if part.is_killed else signal.SIGTERM)
    living = _wait_for_end(stack, living, STOP_S)
    for part in living:
        _signal(part, signal.SIGKILL)
    return _wait_for_end(stack, living, GONE_S)


def last_lines(log: Path) -> list[str]:
    """Read the end of a log; nothing where there is none."""
    try:
        with log.open(encoding="utf-8", errors="replace") as file:
            return list(deque((line.rstrip() for line in file if line.strip()), maxlen=LAST_LINES))
    except OSError:
        return []


def _died(name: str, pid: int, folder: Path) -> StackError:
    log = log_of(folder, name)
    lines = last_lines(log)
    ending = "and ends with:" if lines else "and is empty"
    return StackError(f"{name} ended right after it was started{_how(pid)}; its log is {log}, {ending}", lines)


def _how(pid: int) -> str:
    """Say how a child of ours ended, and let it go; nothing where it is not ours, or lives."""
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except OSError:
        return ""
    code = os.waitstatus_to_exitcode(status)
    return "" if not ended else f" (killed by signal {-code})" if code < 0 else f" (exit code {code})"


def _wait_for_end(stack: Stack, parts: list[Noted], limit_s: float) -> list[Noted]:
    deadline = time.monotonic() + limit_s
    while (living := [part for part in parts if stack.is_alive(part)]) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    for part in set(parts).difference(living):
        _how(part.pid)
    return living


def _signal(part: Noted, number: signal.Signals) -> None:
    """Signal the whole session, which is the part's alone: on PATH there may be a script around the program."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(part.pid, number)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
