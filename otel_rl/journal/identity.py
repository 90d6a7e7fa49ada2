"""Who writes a journal, and whether that process still lives.

A process is told by boot id, pid namespace, pid and start time, never by a lock: a forked child would keep it.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Any, Final

from otel_rl.config import LAUNCH

STALE_S = 60.0
"""A writer that cannot be looked up is dead when its files were not touched for so long; it touches them every 5 s."""

KEEP_S = 5.0
"""So long a table of the machine's processes serves."""

SIDECAR: Final = "sidecar"
"""The role of who ships a run and outlives it."""

_PROC = "/proc"
_START_TIME = 19
"""Its place behind the command in /proc/<pid>/stat."""


@dataclass(frozen=True)
class WriterIdentity:
    """The process behind a journal; what the platform does not tell is empty or 0."""

    writer: str
    """Its name, unique: ``<role>-<rank>-<pid>-<8 random hex>``; role and rank are for humans only."""
    boot_id: str = ""
    pid_namespace: str = ""
    pid: int = 0
    start_time: int = 0
    """Clock ticks since boot, field 22 of /proc/<pid>/stat."""
    host: str = ""
    created_ns: int = 0
    version: str = ""
    launch: str = ""
    """Of which `otel-rl run` it is, as ``config.LAUNCH`` says; empty where none handed a mark down to it."""

    @classmethod
    def current(cls, role: str, rank: int, version: str = "") -> WriterIdentity:
        """Make the identity of a new journal of this process; call it again in a forked child."""
        pid = os.getpid()
        return cls(
            writer=f"{re.sub(r'[^A-Za-z0-9_-]', '_', role)[:64] or '_'}-{rank}-{pid}-{os.urandom(4).hex()}",
            boot_id=_boot_id(),
            pid_namespace=_pid_namespace(),
            pid=pid,
            start_time=start_time(pid) or 0,
            host=socket.gethostname(),
            created_ns=time.time_ns(),
            version=version,
            launch=os.environ.get(LAUNCH, ""),
        )

    @property
    def is_sidecar(self) -> bool:
        """Whether it only ships what others record."""
        return self.writer.startswith(f"{SIDECAR}-")

    def to_json(self) -> bytes:
        """The payload of a writer frame."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, payload: bytes) -> WriterIdentity | None:
        """Read a writer frame; None where it is none. Unknown fields and those of another type are ignored."""
        values: Any
        try:
            values = json.loads(payload)
        except (ValueError, RecursionError):
            return None
        if not isinstance(values, dict) or not isinstance(values.get("writer"), str):
            return None
        kinds = {"pid": int, "start_time": int, "created_ns": int}
        names = {field.name for field in fields(cls)}
        known: dict[str, Any] = {k: v for k, v in values.items() if k in names and type(v) is kinds.get(k, str)}
        return cls(**known)

    def is_alive(self, silent_s: Callable[[], float], is_closed: Callable[[], bool] = lambda: False) -> bool:
        """Return whether the writing process lives.

        Where the process cannot be looked up (another host, another pid namespace, no /proc, or one that hides the
        processes of others), its files decide.

        Args:
            silent_s: reads for how long its files were not modified, s.
            is_closed: reads whether it closed its journal.
        """
        is_told = bool(self.boot_id and self.pid_namespace and self.start_time)
        if is_told and (self.boot_id, self.pid_namespace) == (_boot_id(), _pid_namespace()):
            found = start_time(self.pid)
            if found is not None or not _is_hidden(self.pid):
                return found == self.start_time
        if is_closed():
            return False
        if silent_s() < STALE_S:
            return True
        return is_told and self.boot_id == _boot_id() and self._is_stopped_below()

    def _is_stopped_below(self) -> bool:
        """Whether the process lives in a pid namespace below ours and only touches nothing: stopped, or paused."""
        pid = _processes_below(int(time.monotonic() / KEEP_S)).get((self.pid, self.start_time))
        return pid is not None and start_time(pid) == self.start_time


def start_time(pid: int) -> int | None:
    """Read when a process of this pid namespace started, in clock ticks since boot; None where it is dead or unknown.

    A process that was killed but not yet waited for is dead: it writes no more.
    """
    text = _read(f"{_PROC}/{pid}/stat")
    words = text.rpartition(")")[2].split()  # the command in front may hold spaces and parentheses
    if len(words) <= _START_TIME or words[0] in "ZXx":
        return None
    return int(words[_START_TIME])


def _is_hidden(pid: int) -> bool:
    """Return whether there is a process that is not shown to us: /proc can hide those of other users (``hidepid``)."""
    if _read(f"{_PROC}/{pid}/stat"):
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def _innermost(pid: int) -> int:
    """The number that a process of a pid namespace below ours has in its own; 0 for others, or where it is not told."""
    found = re.search(r"^NSpid:\t[0-9]+\t.*?([0-9]+)$", _read(f"{_PROC}/{pid}/status"), re.MULTILINE)
    return int(found[1]) if found else 0


@lru_cache(maxsize=1)
def _processes_below(period: int) -> dict[tuple[int, int], int]:
    """Find the processes of pid namespaces below ours: by their number there and their start, their number here.

    Args:
        period: the table is made anew for each; a process that is looked for is older than that.

    Cost: 30 us for each process of the machine.
    """
    pids = [int(name) for name in _names(_PROC) if name.isdecimal()]
    return {(inner, start_time(pid) or 0): pid for pid in pids if (inner := _innermost(pid))}


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _boot_id() -> str:
    return _read(f"{_PROC}/sys/kernel/random/boot_id").strip()


def _pid_namespace() -> str:
    try:
        return os.readlink(f"{_PROC}/self/ns/pid")
    except OSError:
        return ""


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
