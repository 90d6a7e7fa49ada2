"""The status page of a process: shared memory that shows what the process does without its interpreter, and a file.

The threads of the program write the current stage into the memory, and the flusher a heartbeat, the open stages and how
long each kind of stage takes normally. Other processes of the machine read it at any time, also while its process is
stopped or spins in C. The flusher copies it to the file, for other machines and for after the end of the process: a
store into a file that is mapped would wait for a disk that hangs. Stack traces are appended to the file after the page.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from otel_rl.journal.filesystem import make_directory
from otel_rl.journal.identity import WriterIdentity

SUFFIX: Final = ".page"
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
STEP: Final = 4
"""The number of the open step, plus 1; 0: none."""
ANSWERED: Final = 5
"""Number of the last request for stacks that the flusher has answered."""
SIGNAL: Final = 6
"""Number of the signal that makes the process append its stacks; 0: it takes none."""
VERSION: Final = 7
"""Odd while the state is being written."""
LENGTH: Final = 8
"""Bytes of the state."""
MEMORY: Final = 9
"""The descriptor of the memory in its process."""
OWN_WORDS: Final = 10
"""The process writes those before; others write the further ones, into the file."""
ASKED: Final = 10
"""Number of the last request for stacks."""
STALLED: Final = 11
"""When the stage of the last stall began."""
NUM_WORDS: Final = 12

TEXTS: Final = ("process", "role", "attempt", "trace_id")
NUMBERS: Final = ("anchor", "rank", "world_size", "requests")
ROW_TEXTS: Final = ("name", "kind", "id", "parent")
ROW_NUMBERS: Final = ("began", "touched")
IDENTITY: Final = ("pid", "start_time", "created_ns")


class Page:
    """The page of this process."""

    def __init__(self, path: Path) -> None:
        """Make the file, for its owner only.

        Raises:
            OSError: the file cannot be made, or its disk is full.
        """
        make_directory(path.parent)
        self.path = path
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._descriptors = {self.descriptor}
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self.descriptor, 0, SIZE)  # a write to a page that has no block would be a SIGBUS
            else:
                os.write(self.descriptor, bytes(SIZE))
            self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            memory = _make_memory(path.name) if hasattr(os, "memfd_create") else self._file
            self._map = mmap.mmap(memory, SIZE)
        except OSError:
            self.remove()
            raise
        self._descriptors = {self.descriptor, self._file, memory}
        self.words = memoryview(self._map).cast("Q")
        self.words[0], self.words[MEMORY] = MAGIC, memory

    def name(self, code: int, name: str) -> None:
        """Write what a code of a stage means."""
        data = name.encode("utf-8", "replace")[: NAME_BYTES - 1]
        at = NAMES_AT + (code - 1) * NAME_BYTES
        self._map[at : at + len(data)] = data

    def write(self, state: dict[str, Any]) -> bool:
        """Replace the state; return False, and leave it as it was, if it does not fit."""
        data = json.dumps(state, separators=(",", ":"), default=str).encode("utf-8", "replace")
        if len(data) > MOST_STATE:
            return False
        words, end = self.words, STATE_AT + len(data)
        words[VERSION] |= 1
        self._map[STATE_AT:end] = data
        words[LENGTH] = len(data)
        self.save()
        os.pwrite(self._file, self._map[NAMES_AT:end], NAMES_AT)
        words[VERSION] += 1
        self.save()
        return True

    def save(self) -> None:
        """Copy the words to the file."""
        os.pwrite(self._file, self._map[: OWN_WORDS * WORD], 0)

    def wanted(self) -> tuple[int, int]:
        """Return what others have written: ``ASKED`` and ``STALLED``."""
        asked, stalled = struct.unpack("=2Q", os.pread(self._file, 2 * WORD, ASKED * WORD))
        return asked, stalled

    def append(self, text: str) -> None:
        """Append stack traces after the page."""
        os.write(self.descriptor, text.encode("utf-8", "replace"))

    def move(self, directory: Path) -> None:
        """Follow the journal into another directory.

        Raises:
            OSError: it cannot be moved.
        """
        make_directory(directory)
        left, path = self.path.parent, directory / self.path.name
        os.replace(self.path, path)
        self.path = path
        with suppress(OSError):  # others are still in it
            left.rmdir()

    def remove(self) -> None:
        """Remove the file: its process has journaled all."""
        with suppress(OSError):
            self.path.unlink()
        for descriptor in self._descriptors:
            with suppress(OSError):
                os.close(descriptor)


def _make_memory(name: str) -> int:
    memory = os.memfd_create(name, os.MFD_CLOEXEC)
    os.posix_fallocate(memory, 0, SIZE)  # without memory a later store would be a SIGBUS
    return memory


@dataclass(frozen=True)
class PageView:
    """A page as another process reads it. Times are monotonic ns of the machine that wrote it."""

    path: Path
    identity: WriterIdentity
    heartbeat_ns: int
    stage: str
    """The stage that its threads are in, or were in last; empty if none, or one without a code."""
    began_ns: int
    signal: int
    """The signal that makes it append its stacks; 0 if there is none."""
    anchor_ns: int = 0
    """Wall clock less monotonic clock."""
    process: str = ""
    """``driver``, ``rank``, ``worker`` or ``engine``."""
    role: str = ""
    rank: int = 0
    world_size: int = 1
    attempt: str = ""
    trace_id: str = ""
    """Of the step that is open, as hex digits."""
    step: int | None = None
    open: Sequence[dict[str, Any]] = ()
    """The stages that have been open for a second or longer, the oldest first."""
    normal: dict[str, tuple[int, float]] = field(default_factory=dict)
    """By kind of stage: how many calls have ended, and the median duration of the last ones, s."""
    groups: dict[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    """By process group: the last collective that began in it, and its ranks."""
    requests: int = 0
    """Requests inside the engines of this process."""


def read_page(path: Path) -> PageView | None:
    """Read a page; None if it is none, or of a process that has not written it yet.

    Cost: 20 to 200 us, by the number of open stages.

    Raises:
        OSError: the file cannot be read.
    """
    with open(path, "rb", buffering=0) as file:
        for _ in range(8):  # its writer may be in the middle of it; a process that died there leaves it odd for ever
            data = os.pread(file.fileno(), SIZE, 0)
            words = struct.unpack_from(f"={NUM_WORDS}Q", data) if len(data) == SIZE else (0,)
            if words[0] != MAGIC:
                return None
            (version,) = struct.unpack("=Q", os.pread(file.fileno(), WORD, VERSION * WORD))
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
    memory = _memory_of(identity, path, words[MEMORY])
    if memory:
        data, words = memory, struct.unpack_from(f"={NUM_WORDS}Q", memory)
    return PageView(
        path,
        identity,
        heartbeat_ns=words[HEARTBEAT],
        stage=_name(data, words[STAGE]),
        began_ns=words[BEGAN],
        signal=words[SIGNAL],
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
    )


def _memory_of(identity: WriterIdentity, path: Path, descriptor: int) -> bytes:
    """Return words and names as a process has them now; nothing if its memory is not seen from here, or gone."""
    place = f"/proc/{identity.local_pid}/fd/{descriptor}"
    with suppress(OSError):
        if os.readlink(place) == f"/memfd:{path.name} (deleted)":  # what else it has opened there is not ours to open
            with open(place, "rb", buffering=0) as file:
                return os.pread(file.fileno(), STATE_AT, 0)
    return b""


def keep_stage(page: PageView) -> None:
    """Copy to the file what the threads of a process show that does not do it itself: its memory goes when it ends.

    Raises:
        OSError: it has no page any more.
    """
    with open(page.path, "r+b", buffering=0) as file:
        (descriptor,) = struct.unpack("=Q", os.pread(file.fileno(), WORD, MEMORY * WORD))
        memory = _memory_of(page.identity, page.path, descriptor)
        for begin, end in ((WORD * HEARTBEAT, WORD * (STEP + 1)), (NAMES_AT, STATE_AT)):
            os.pwrite(file.fileno(), memory[begin:end], begin)


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
