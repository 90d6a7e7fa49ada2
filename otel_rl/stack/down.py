"""Take the stack down."""

from __future__ import annotations

import shutil
from pathlib import Path

from otel_rl.stack import compose, processes, state
from otel_rl.stack.look import strays
from otel_rl.stack.problem import StackError
from otel_rl.stack.state import Damaged, Stack


def down(root: Path, *, delete: bool) -> list[str]:
    """End what `up` started, and nothing else.

    Args:
        root: the root of the runs.
        delete: also remove the data, the logs and the queue of the stack.

    Returns:
        The names of the parts that were ended; none where nothing ran.

    Raises:
        StackError: something still runs.
        OSError: something cannot be removed.
    """
    folder = root / state.FOLDER
    if not folder.is_dir():
        return []
    with state.alone(root):
        ended = _end(folder, delete=delete)
        state.forget(folder)
        if delete:
            shutil.rmtree(folder)
    return ended


def _end(folder: Path, *, delete: bool) -> list[str]:
    try:
        noted = state.read(folder)
    except Damaged as error:
        _refuse_strays(folder, error)
        return []
    if noted is None:
        return []
    if noted.is_elsewhere:
        raise StackError(f"{noted.host} started the stack of {folder}: end it there")
    if noted.by == "compose":
        return compose.down(folder, delete=delete)
    return _stop(noted)


def _stop(noted: Stack) -> list[str]:
    """End the Collector first: what it still holds goes where it belongs."""
    living = [part for part in noted.parts if noted.is_alive(part)]
    senders = [part for part in living if part.name == "collector"]
    stores = [part for part in living if part.name != "collector"]
    left = [*processes.stop(noted, senders), *processes.stop(noted, stores)]
    if left:
        rows = ", ".join(f"{part.name} (pid {part.pid})" for part in left)
        raise StackError(f"{rows} cannot be ended: it belongs to another user, or waits for a disk")
    return [part.name for part in living]


def _refuse_strays(folder: Path, error: Damaged) -> None:
    found = strays(folder)
    if found:
        rows = ", ".join(f"{name} (pid {pid})" for pid, name in found.items())
        kill = " ".join(map(str, found))
        raise StackError(f"{error}; {rows} seem to be of its stack: end them with `kill {kill}`, then try again")
