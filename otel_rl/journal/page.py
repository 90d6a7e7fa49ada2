"""The status page of a process: shared memory that shows what the process does without its interpreter.

The threads of the program write the current stage into it, and the flusher a heartbeat, the open stages and how long
each kind of stage takes normally. Other processes of the machine read it at any time, also while its process is
stopped, spins in C, or is dead. Stack traces are appended to the same file after the page.

It is a file of ``/dev/shm``: a page of a disk's file can be locked while the disk writes it, and a store into it would
hold the program up. Every few seconds the flusher copies it into the run's directory, for readers of other nodes, and
for those who come when the process is dead.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from otel_rl.clock import time
from otel_rl.journal.filesystem import make_directory, silent_s
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.own_file import OwnFile

SUFFIX: Final = ".page"
MEMORY: Final = Path("/dev/shm")
LEFT_S: Final = 86_400.0
"""The memory of a process that was killed is freed after this time at the latest."""
MAP_FIXED: Final = 0x10
"""A flag of Linux's ``mmap`` that Python's module lacks."""
MAGIC: Final = int.from_bytes(b"otelrlp1", "little")
SIZE: Final = 1 << 16
WORD: Final = 8
NAMES_AT: Final = 512
NAME_BYTES: Final = 64
MOST_NAMES: Final = 120
STATE_AT: Final = NAMES_AT + MOST_NAMES * NAME_BYTES
MOST_STATE: Final = SIZE - STATE_AT

# Words of 8 bytes. Times are monotonic ns of the machine.
HEARTBEAT: Final = 1
"""When the flusher worked last."""
STAGE: Final = 2
"""Code of the stage that began or went on last in any thread; 0: none, or one without a code."""
BEGAN: Final = 3
"""When that stage began; without a stage: when the last one ended."""
ASKED: Final = 4
"""Number of the last request for stacks; written by the process that asks."""
ANSWERED: Final = 5
"""Number of the last request that the flusher has answered."""
SIGNAL: Final = 6
"""Number of the signal that makes the process append its stacks; 0: it takes none."""
VERSION: Final = 7
"""Odd while the state is being written."""
LENGTH: Final = 8
"""Bytes of the state."""
STALLED: Final = 9
"""When the stage of the last stall began; written by the process that watches."""
STEP: Final = 10
"""The number of the open step, plus 1; 0: none."""
UNWRITTEN: Final = 11
"""1: the process ended by itself before all that it had recorded was on disk. It was not killed."""
NUM_WORDS: Final = 12

TEXTS: Final = ("process", "role", "attempt", "trace_id")
NUMBERS: Final = ("anchor", "rank", "world_size", "requests")
ROW_TEXTS: Final = ("name", "kind", "id", "parent")
ROW_NUMBERS: Final = ("began", "touched")
IDENTITY: Final = ("pid", "start_time", "created_ns")


class Page:
    """The page of this process."""

    def __init__(self, path: Path) -> None:
        """Make it, for its owner only.

        Args:
            path: of its copy in the run's directory, which ``save`` makes.

        Raises:
            OSError: there is no shared memory left.
        """
        self.path = path
        self.memory = memory_of(path, os.getuid())
        _free_left()
        with OwnFile(self.memory, os.O_RDWR | os.O_CREAT | os.O_EXCL) as file:
            try:
                os.posix_fallocate(file.number, 0, SIZE)  # a write to a page that has no block would be a SIGBUS
                self._map = _mapped(file.number)
            except OSError:
                self.remove()
                raise
        self.words = memoryview(self._map).cast("Q")
        self.words[0] = MAGIC

    def name(self, code: int, name: str) -> None:
        """Write what a code of a stage means."""
        data = name.encode("utf-8", "replace")[: NAME_BYTES - 1]
        at = NAMES_AT + (code - 1) * NAME_BYTES
        self._map[at : at + len(data)] = data

    def write(self, state: dict[str, Any]) -> bool:
        """Replace the state; return False, and leave it as it was, if it does not fit."""
        data = json.dumps({"user": os.getuid(), **state}, separators=(",", ":"), default=str).encode("utf-8", "replace")
        if len(data) > MOST_STATE:
            return False
        words = self.words
        words[VERSION] |= 1
        self._map[STATE_AT : STATE_AT + len(data)] = data
        words[LENGTH] = len(data)
        words[VERSION] += 1
        return True

    def save(self) -> None:
        """Copy it into the run's directory.

        Raises:
            OSError: it cannot be written there.
        """
        make_directory(self.path.parent)
        with OwnFile(self.path, os.O_WRONLY | os.O_CREAT) as file:
            os.pwrite(file.number, self._map[: STATE_AT + self.words[LENGTH]], 0)
        os.utime(self.memory)

    def append(self, text: str) -> None:
        """Append stack traces after the page.

        Raises:
            OSError: there is no room, or somebody has removed the page.
        """
        with OwnFile(self.memory, os.O_WRONLY | os.O_APPEND) as file:
            os.write(file.number, text.encode("utf-8", "replace"))

    def move(self, directory: Path) -> None:
        """Follow the journal into another directory.

        Raises:
            OSError: it cannot be moved.
        """
        make_directory(directory)
        left, path = self.path.parent, directory / self.path.name
        if self.path.exists():
            os.replace(self.path, path)
        self.path = path
        with suppress(OSError):  # others are still in it
            left.rmdir()

    def remove(self) -> None:
        """Remove it and its copy: its process has journaled all."""
        for path in (self.path, self.memory):
            with suppress(OSError):
                path.unlink()


@dataclass(frozen=True)
class PageView:
    """A page as another process reads it. Times are monotonic ns of the machine that wrote it."""

    path: Path
    """The copy in the run's directory."""
    identity: WriterIdentity
    heartbeat_ns: int
    stage: str
    """The stage that its threads are in, or were in last; empty if none, or one without a code."""
    began_ns: int
    signal: int
    """The signal that makes it append its stacks; 0 if there is none."""
    memory: Path | None = None
    """The page itself, which may be written, and where stacks are appended; None if it is not of this machine."""
    anchor_ns: int = 0
    """Wall clock less monotonic clock."""
    process: str = ""
    """``driver``, ``rank``, ``worker`` or ``engine``."""
    role: str = ""
    rank: int = 0
    world_size: int = 1
    attempt: str = ""
    trace_id: str = ""
    """Trace id of the open step, as hex digits."""
    step: int | None = None
    open: Sequence[dict[str, Any]] = ()
    """The stages that have been open for a second or longer, the oldest first."""
    normal: dict[str, tuple[int, float]] = field(default_factory=dict)
    """By kind of stage: how many calls have ended, and the median duration of the last ones, s."""
    requests: int = 0
    """Requests inside the engines of this process."""
    groups: dict[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    """By process group: which collective began last in it, and its ranks."""
    is_unwritten: bool = False
    """Whether its process ended by itself before all was on disk."""


def memory_of(path: Path, user: int) -> Path:
    """Return where the page is whose copy has a path."""
    return MEMORY / f"otel_rl-{user}-{path.name}"


def read_page(path: Path) -> PageView | None:
    """Read a page: itself if it is of this machine, else its copy; None if it is none.

    Cost: 40 to 400 us, by the number of open stages.

    Raises:
        OSError: the file cannot be read.
    """
    copy = _read(path, path)
    if copy is not None and copy.memory is not None:
        with suppress(OSError):  # it is of another node, or its process was killed long ago
            page = _read(copy.memory, path)
            if page is not None and page.identity == copy.identity:
                return page
        return replace(copy, memory=None)
    return copy


def keep(page: PageView) -> None:
    """Save the page of a dead process as it was last, and free its memory.

    Raises:
        OSError: it cannot be saved.
    """
    if page.memory is not None:
        with open(page.memory, "rb") as file, open(page.path, "r+b") as copy:
            copy.write(file.read(SIZE))
        page.memory.unlink()


def keep_unwritten(directory: Path) -> None:
    """Keep what processes of a run say that ended before all was written: their memory may go with a container."""
    for page in find_pages(directory).values():
        if page.is_unwritten and not page.identity.is_alive(partial(silent_s, page.path)):
            with suppress(OSError):  # the disk is full
                keep(page)


def _mapped(descriptor: int) -> mmap.mmap:
    """Map a file without keeping its descriptor.

    ``mmap.mmap`` keeps a duplicate (up to Python 3.12 always) and closes its number at the end, whatever the program
    has opened under it since. So it maps memory of no file, and the file takes the place of that.

    Raises:
        OSError: it cannot be mapped.
    """
    mapped = mmap.mmap(-1, SIZE)
    system = ctypes.CDLL(None, use_errno=True).mmap
    system.restype = ctypes.c_void_p
    system.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    if system(address, SIZE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | MAP_FIXED, descriptor, 0) != address:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return mapped


def _free_left() -> None:
    """Remove pages of processes that were killed, and that nobody has kept."""
    for path in MEMORY.glob(f"otel_rl-{os.getuid()}-*{SUFFIX}"):
        with suppress(OSError):
            if time() - path.stat().st_mtime > LEFT_S:
                path.unlink()


def _read(file_path: Path, path: Path) -> PageView | None:
    with open(file_path, "rb", buffering=0) as file:
        for _ in range(8):  # its writer may be in the middle of it; a process that died there leaves it odd for ever
            data = os.pread(file.fileno(), SIZE, 0)
            words = struct.unpack_from(f"={NUM_WORDS}Q", data) if len(data) >= STATE_AT else (0,)
            if words[0] != MAGIC:
                return None
            version = int.from_bytes(os.pread(file.fileno(), WORD, VERSION * WORD), sys.byteorder)
            if words[VERSION] % 2 == 0 and version == words[VERSION]:
                break
    try:
        state = json.loads(data[STATE_AT : STATE_AT + words[LENGTH]])
        return _view(path, data, words, state)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def find_pages(directory: Path) -> dict[str, PageView]:
    """Read the pages of a run directory, by the name of their writers; what cannot be read is left out."""
    found = {}
    for path in directory.glob(f"*{SUFFIX}"):
        with suppress(OSError):  # its process has ended meanwhile
            page = read_page(path)
            if page is not None:
                found[page.identity.writer] = page
    return found


def _view(path: Path, data: bytes, words: Sequence[int], state: dict[str, Any]) -> PageView | None:
    identity = WriterIdentity.from_json(json.dumps(state["identity"]).encode())
    if identity is None:
        return None
    _check(state, TEXTS, NUMBERS, ids=("trace_id",))
    _check(state["identity"], (), IDENTITY)
    for row in state["open"]:
        _check(row, ROW_TEXTS, ROW_NUMBERS, ids=("id",))
        dict(row["attributes"])
    return PageView(
        path,
        identity,
        heartbeat_ns=words[HEARTBEAT],
        stage=_name(data, words[STAGE]),
        began_ns=words[BEGAN],
        signal=words[SIGNAL],
        memory=memory_of(path, int(state["user"])),
        anchor_ns=state["anchor"],
        process=state["process"],
        role=state["role"],
        rank=state["rank"],
        world_size=state["world_size"],
        attempt=state["attempt"],
        trace_id=state["trace_id"],
        step=words[STEP] - 1 if words[STEP] else None,
        open=state["open"],
        normal={key: (int(count), float(median)) for key, (count, median) in state["normal"].items()},
        requests=state["requests"],
        groups={name: (int(number), tuple(map(int, ranks))) for name, (number, ranks) in state["groups"].items()},
        is_unwritten=bool(words[UNWRITTEN]),
    )


def _check(found: dict[str, Any], texts: Sequence[str], numbers: Sequence[str], ids: Sequence[str] = ()) -> None:
    """Raise if a damaged disk has made something else of it: one bad page must not cost the view of all others."""
    if not all(isinstance(found[key], str) for key in texts) or not all(isinstance(found[key], int) for key in numbers):
        raise TypeError
    for key in ids:
        int(found[key] or "0", 16)


def _name(data: bytes, code: int) -> str:
    if not 0 < code <= MOST_NAMES:
        return ""
    at = NAMES_AT + (code - 1) * NAME_BYTES
    return data[at : at + NAME_BYTES].rstrip(b"\0").decode("utf-8", "replace")
