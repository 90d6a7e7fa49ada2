"""See how the stack does."""

from __future__ import annotations

import os
import time
from pathlib import Path

from otel_rl.stack import compose, state
from otel_rl.stack.answer import answers
from otel_rl.stack.plan import CONFIGURATIONS
from otel_rl.stack.problem import StackError
from otel_rl.stack.row import ANSWERS, DEAD, SILENT, Row
from otel_rl.stack.state import Damaged


def look(root: Path) -> list[Row]:
    """List the parts of the stack of a root of runs; none where it is not up.

    Raises:
        StackError: it cannot be told from here.
    """
    folder = root / state.FOLDER
    try:
        noted = state.read(folder)
    except Damaged as error:
        raise StackError(f"{error}: `otel-rl stack down` clears it up") from None
    if noted is None:
        return []
    if noted.is_elsewhere:
        raise StackError(f"{noted.host} started the stack of {folder}: ask there")
    if noted.by == "compose":
        return compose.rows(folder)
    return [_row(noted, part) for part in noted.parts]


def _row(noted: state.Stack, part: state.Noted) -> Row:
    if not noted.is_alive(part):
        return Row(part.name, DEAD, part.address, part.pid, None)
    well = answers(part.health_port, part.health_path)
    age_s = max(time.time() - part.started_s, 0.0)
    return Row(part.name, ANSWERS if well else SILENT, part.address, part.pid, age_s)


def strays(folder: Path) -> dict[int, str]:
    """Find processes that lead a session, work in our folder and name a configuration in it: pid and name.

    For a person to judge where the state file says nothing; nothing is ended for standing here.
    """
    import psutil

    marker = os.path.join(CONFIGURATIONS, "")
    home = os.path.realpath(folder)
    return {
        process.info["pid"]: process.info["name"]
        for process in psutil.process_iter(["pid", "name", "cmdline", "cwd"])
        if process.info["cwd"] == home
        and any(marker in word for word in process.info["cmdline"] or ())
        and _leads(process.info["pid"])
    }


def _leads(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except OSError:
        return False
