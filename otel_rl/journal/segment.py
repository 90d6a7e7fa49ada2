"""The files of a journal as its writer sees them: segments, to which one process appends whole frames."""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from otel_rl.journal.frame import Signal
from otel_rl.journal.own_file import OWNER, OwnFile

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""After these errors the same file may be appended to again; after any other a new segment is begun."""


@dataclass(slots=True, eq=False)
class Segment:
    """A segment of this process; ``file`` is None once it is closed."""

    signal: Signal
    number: int
    path: Path
    file: OwnFile | None = None
    size: int = 0
    frames: int = 0
    """Frames of records, without the writer's own frame."""
    records: int = 0
    marked_at: int = 0
    """Its size after the last mark that the journal is complete."""

    @classmethod
    def create(cls, signal: Signal, number: int, path: Path, identity: bytes) -> Segment:
        """Make the file, for its owner only, with the writer's frame in it.

        Raises:
            OSError: it cannot be made or written; nothing of it remains.
        """
        file = OwnFile(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL)
        segment = cls(signal, number, path, file)
        try:
            if os.stat(path).st_mode & OWNER != OWNER:  # the umask would keep the owner from reading it
                os.chmod(path, OWNER)
            segment._write(identity)
        except OSError:
            segment.remove()
            raise
        return segment

    def append(self, frame: bytes, records: int) -> None:
        """Append one frame, all or nothing.

        Raises:
            OSError: nothing was appended. Unless the disk is full, the segment is closed and a new one must be begun.
        """
        try:
            self._write(frame)
        except OSError as error:
            if error.errno not in FULL:
                self.close()
            raise
        self.frames += 1
        self.records += records

    def close(self) -> None:
        is_empty = self.frames == 0 and self.file is not None and self.file.is_own()
        self.abandon()
        if is_empty:
            self.remove()

    def abandon(self) -> None:
        """Close the descriptor only; a forked child may do that with its parent's file."""
        file, self.file = self.file, None
        if file is not None:
            file.close()

    def remove(self) -> None:
        """Close the file and remove it; readers ignore one that cannot be removed."""
        self.abandon()
        with suppress(OSError):
            self.path.unlink()

    def move(self, directory: Path) -> None:
        """Move the file, open or closed; one that is gone only gets its new name.

        Raises:
            OSError: it stays where it was.
        """
        target = directory / self.path.name
        if self.path.exists():
            os.rename(self.path, target)
        self.path = target

    def _write(self, data: bytes) -> None:
        status = None if self.file is None else self.file.status()
        if self.file is None or status is None:
            raise OSError(errno.EBADF, "the descriptor was closed by the program", str(self.path))
        if not status.st_nlink:
            raise OSError(errno.ENOENT, "the file was removed", str(self.path))
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self.file.number, rest) :]
        except OSError:
            self._cut(self.file)
            raise
        self.size += len(data)

    def _cut(self, file: OwnFile) -> None:
        """Cut the file back to its whole frames; if that fails too, begin a new one."""
        try:
            if file.is_own():
                os.ftruncate(file.number, self.size)
        except OSError:
            self.abandon()


def shipped_path(directory: Path, writer: str) -> Path:
    """Return the file in which the sidecar keeps what of a journal the server has acknowledged."""
    return directory / f"{writer}.shipped"


def first_unsent(directory: Path, writer: str) -> dict[Signal, int]:
    """Return by signal the first segment that is not sent as a whole; empty if that is unknown."""
    try:
        data: Any = json.loads(shipped_path(directory, writer).read_bytes())
        return {cast("Signal", signal): int(row["ranges"][0][0][0]) for signal, row in data.items()}
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError):
        return {}
