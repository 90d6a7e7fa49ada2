"""What `up` notes about what it started, so that `status` and `down` find it again, and nothing else."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from otel_rl.journal.identity import WriterIdentity, start_time
from otel_rl.stack.problem import StackError

FOLDER: Final = ".stack"
"""Below the root of the runs; its name keeps it from being taken for a run."""
FILE: Final = "stack.json"
By = Literal["programs", "compose"]
KINDS: Final[dict[str, tuple[type, ...]]] = {
    "By": (str,), "bool": (bool,), "float": (int, float), "int": (int,), "str": (str,), "tuple[Noted, ...]": (tuple,),
}  # fmt: skip
"""What JSON may give for each type of a field."""
if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


@dataclass(frozen=True, slots=True)
class Noted:
    """One process of the stack. A pid alone is no name: the system gives it to another process later."""

    name: str
    program: str
    pid: int
    start_time: int
    """Clock ticks since boot, as ``journal.identity.start_time`` reads it."""
    started_s: float
    """Since 1970, to say its age."""
    address: str
    """Where a person or a program reaches it."""
    health_port: int
    health_path: str
    is_killed: bool = False
    """Whether it is ended by SIGKILL at once."""


@dataclass(frozen=True, slots=True)
class Stack:
    """The stack of one root of runs."""

    by: By
    host: str
    boot_id: str
    pid_namespace: str
    offset: int
    """By how much its ports are shifted."""
    parts: tuple[Noted, ...] = ()

    @classmethod
    def here(cls, by: By, offset: int, parts: tuple[Noted, ...] = ()) -> Stack:
        """Note a stack of this machine."""
        me = WriterIdentity.current("stack", 0)
        return cls(by, me.host, me.boot_id, me.pid_namespace, offset, parts)

    @property
    def is_elsewhere(self) -> bool:
        """Whether another machine started it, so that nothing of it can be seen from here."""
        here = self.here(self.by, self.offset)
        return self.boot_id != here.boot_id and self.host != here.host

    def is_alive(self, part: Noted) -> bool:
        """Say whether the process that was noted lives: the same pid, started at the same moment of the same boot."""
        here = self.here(self.by, self.offset)
        if (self.boot_id, self.pid_namespace) != (here.boot_id, here.pid_namespace):
            return False
        return start_time(part.pid) == part.start_time


class Damaged(StackError):
    """The state file is there and says nothing that can be used."""


def read(folder: Path) -> Stack | None:
    """Read what was noted; None where nothing was.

    Raises:
        Damaged: the file cannot be understood.
        OSError: it cannot be read.
    """
    path = folder / FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        values = json.loads(content)
        parts = tuple(_typed(Noted, row) for row in values.pop("parts"))
        return _typed(Stack, values | {"parts": parts})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Damaged(f"{path} is damaged") from error


def _typed(kind: type[T], values: dict[str, Any]) -> T:
    """Make a row of what JSON gave; a value of another type could end a process that is not ours."""
    for row in fields(kind):
        value = values.get(row.name, row.default)
        least = 1 if row.name == "pid" else 0  # 0 means many processes to the system
        if type(value) not in KINDS[str(row.type)] or (row.type == "int" and value < least):
            raise ValueError(row.name)
    return kind(**values)


def write(folder: Path, stack: Stack) -> None:
    """Note a stack, for this user alone, whole or not at all."""
    new = folder / f"{FILE}.new"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(asdict(stack), file, indent=1)
    os.replace(new, folder / FILE)


def forget(folder: Path) -> None:
    """Remove what was noted."""
    (folder / FILE).unlink(missing_ok=True)


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Let one `up` or `down` of a root work at a time; the next one waits for it.

    The lock is on the root itself, which `down --delete` leaves. A file system that cannot lock does without.
    """
    descriptor = os.open(root, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
