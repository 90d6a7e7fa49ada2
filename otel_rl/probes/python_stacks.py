"""Python stacks of all threads and asyncio tasks of this process, as text: file, line and function, never a value."""

from __future__ import annotations

import gc
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from otel_rl.guard import guard

MOST_FRAMES: Final = 60
MOST_THREADS: Final = 100
MOST_TASKS: Final = 200


def stacks() -> Iterator[str]:
    """Yield the lines, the newest frame of each stack first; the threads of otel_rl are left out.

    Cost: 10 us a thread and 5 us a task.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()
    main = threading.main_thread().ident
    shown = sorted(frames, key=lambda one: (one != main, one))
    for ident in shown[:MOST_THREADS]:
        name = names.get(ident, "not started by Python")
        if not name.startswith("otel_rl"):
            yield f"Thread {name}"
            yield from _lines(_of_thread(frames[ident]))
    if len(shown) > MOST_THREADS:
        yield f"{len(shown) - MOST_THREADS} further threads"
    with guard("read the tasks of asyncio"):
        yield from _task_lines()


def _of_thread(frame: FrameType | None) -> Iterator[tuple[CodeType, int]]:
    while frame is not None:
        yield frame.f_code, frame.f_lineno or 0
        frame = frame.f_back


def _lines(frames: Iterable[tuple[CodeType, int]]) -> Iterator[str]:
    for number, (code, line) in enumerate(frames):
        if number == MOST_FRAMES:
            yield "  ..."
            return
        yield f'  File "{code.co_filename}", line {line} in {code.co_name}'


def _task_lines() -> Iterator[str]:
    tasks = [task for task in _tasks() if not task.done()]
    for task in tasks[:MOST_TASKS]:
        yield f"Task {task.get_name()}"
        yield from _lines(_of_task(task))
    if len(tasks) > MOST_TASKS:
        yield f"{len(tasks) - MOST_TASKS} further tasks"


def _tasks() -> list[Any]:
    """Return the tasks of all event loops; another thread may change the set meanwhile."""
    module = sys.modules.get("asyncio.tasks")  # a process that has not imported it has none
    known: Any = getattr(module, "_scheduled_tasks", None) or getattr(module, "_all_tasks", ())
    for _ in range(10):
        try:
            return list(known)
        except RuntimeError:
            continue
    return []


def _of_task(task: Any) -> Iterator[tuple[CodeType, int]]:
    """Yield what a task waits in, the innermost first: a coroutine awaits another one, down to a future."""
    chain: list[tuple[CodeType, int]] = []
    waited = task.get_coro()
    for _ in range(2 * MOST_FRAMES):
        if type(waited).__name__ == "coroutine_wrapper":  # what Cython awaits, such as Ray's
            waited = next(iter(gc.get_referents(waited)), None)
        frame = next((found for kind in ("cr", "gi", "ag") if (found := getattr(waited, f"{kind}_frame", None))), None)
        if frame is not None:  # one of Cython has none
            chain.append((frame.f_code, frame.f_lineno or 0))
        waited = next(
            (found for kind in ("cr_await", "gi_yieldfrom", "ag_await") if (found := getattr(waited, kind, None))), None
        )
    return reversed(chain)


# --- what the kernel says of a process --------------------------------------------------------------------------------


def process_status(pid: int | str) -> dict[str, str]:
    """Return what the kernel says of a process; nothing if it may not be asked."""
    with suppress(OSError):
        text = Path(f"/proc/{pid}/status").read_text("utf-8", "replace")
        return dict(re.findall(r"^(\w+):\s*(.*)$", text, re.MULTILINE))
    return {}


def catches(pid: int | str, number: int) -> bool:
    """Return whether a process has a handler for a signal, of Python or of C."""
    mask = int(process_status(pid).get("SigCgt", "0"), 16)
    return bool(number) and bool(mask >> (number - 1) & 1)
