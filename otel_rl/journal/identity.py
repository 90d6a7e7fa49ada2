"""Who writes a journal, and whether that process still lives.

A process is known by boot id, pid namespace, pid and start time, never by a lock: a forked child would keep it.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Any, Final

from otel_rl.clock import time_ns
from otel_rl.config import LAUNCH

STALE_S = 60.0
"""A writer that cannot be checked is dead if its files were not touched for this time; it touches them every 5 s."""
SIDECAR: Final = "sidecar"
_PROC = "/proc"
_START_TIME = 19


@dataclass(frozen=True)
class WriterIdentity:
    """The process that writes a journal; what the platform does not report is empty or 0."""

    writer: str
    """Its unique name: ``<role>-<rank>-<pid>-<8 random hex>``; role and rank are for humans only."""
    boot_id: str = ""
    pid_namespace: str = ""
    pid: int = 0
    start_time: int = 0
    """Clock ticks since boot, field 22 of /proc/<pid>/stat."""
    host: str = ""
    created_ns: int = 0
    version: str = ""
    launch: str = ""
    """The mark of the `otel-rl run` that started it, from ``config.LAUNCH``; empty without one."""

    @classmethod
    def current(cls, role: str, rank: int, version: str = "") -> WriterIdentity:
        pid = os.getpid()
        return cls(
            writer=f"{re.sub(r'[^A-Za-z0-9_-]', '_', role)[:64] or '_'}-{rank}-{pid}-{os.urandom(4).hex()}",
            boot_id=_boot_id(),
            pid_namespace=_pid_namespace(),
            pid=pid,
            start_time=start_time(pid) or 0,
            host=socket.gethostname(),
            created_ns=time_ns(),
            version=version,
            launch=os.environ.get(LAUNCH, ""),
        )

    @property
    def is_sidecar(self) -> bool:
        return self.writer.startswith(f"{SIDECAR}-")

    @property
    def local_pid(self) -> int:
        """Return its number in our pid namespace; 0 if it is not below ours, or dead, or of another machine."""
        if self.boot_id != _boot_id():
            return 0
        return self.pid if self.pid_namespace == _pid_namespace() else _pid_below(self.pid, self.start_time)

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, payload: bytes) -> WriterIdentity | None:
        """Read a writer frame; None if it is none. Unknown fields are ignored."""
        names = {field.name for field in fields(cls)}
        try:
            values: dict[str, Any] = json.loads(payload)
            known = {name: value for name, value in values.items() if name in names}
            return cls(**known) if isinstance(known["writer"], str) else None
        except (ValueError, AttributeError, KeyError, TypeError):
            return None

    def is_alive(self, silent_s: Callable[[], float], is_closed: Callable[[], bool] = lambda: False) -> bool:
        """Return whether the writing process lives.

        If the process cannot be checked (another host, another pid namespace, no /proc, or one that hides the
        processes of others), its files decide: whether it closed its journal, and for how long they were not modified.
        Silent files decide nothing if the process is in a pid namespace below ours: there it may be stopped.
        """
        is_known = bool(self.boot_id and self.pid_namespace and self.start_time)
        if is_known and (self.boot_id, self.pid_namespace) == (_boot_id(), _pid_namespace()):
            found = start_time(self.pid)
            if found is not None or not _is_hidden(self.pid):
                return found == self.start_time
        if is_closed():
            return False
        return silent_s() < STALE_S or (is_known and self.boot_id == _boot_id() and self._is_below())

    def _is_below(self) -> bool:
        pid = _pid_below(self.pid, self.start_time)
        return pid > 0 and start_time(pid) == self.start_time


def start_time(pid: int) -> int | None:
    """Return when a process of this pid namespace started, in clock ticks since boot; None if it is dead or unknown.

    A killed process whose parent has not waited for it is dead.
    """
    text = _read(f"{_PROC}/{pid}/stat")
    words = text.rpartition(")")[2].split()  # the command before it may hold spaces and parentheses
    if len(words) <= _START_TIME or words[0] in "ZXx":
        return None
    return int(words[_START_TIME])


@lru_cache(maxsize=1024)
def _pid_below(pid: int, start: int) -> int:
    """Return the number here of a process of a pid namespace below ours; 0 if there is none.

    Cost: up to 30 us for each process of the machine, once for each silent writer.

    Args:
        pid: the process's number in its own namespace.
        start: its start time.
    """
    for name in filter(str.isdecimal, os.listdir(_PROC)):
        inner = re.search(r"^NSpid:\t[0-9]+\t.*?([0-9]+)$", _read(f"{_PROC}/{name}/status"), re.MULTILINE)
        if inner and int(inner[1]) == pid and start_time(int(name)) == start:
            return int(name)
    return 0


def _is_hidden(pid: int) -> bool:
    """Return whether /proc hides an existing process of another user (``hidepid``)."""
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError) and not _read(f"{_PROC}/{pid}/stat")
    return False


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
