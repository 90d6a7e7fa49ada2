"""One segment: a file that one process appends whole frames to."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from pathlib import Path

from otel_rl.journal.frame import Signal

OWNER = 0o600
"""Mode of a file that its owner alone reads and writes."""
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors behind which the same file may be appended to later; behind any other a new segment is begun."""


@dataclass(slots=True, eq=False)
class Segment:
    """A segment of this process; ``descriptor`` is -1 once it is closed."""

    signal: Signal
    number: int
    path: Path
    descriptor: int = -1
    size: int = 0
    """Bytes of its whole frames; what lies behind them is cut off again."""
    frames: int = 0
    """Frames of records; the writer's own frame does not count."""
    records: int = 0
    _file: tuple[int, int] = field(default=(0, 0))

    @classmethod
    def create(cls, signal: Signal, number: int, path: Path, identity: bytes) -> Segment:
        """Make the file, for its owner only, with the writer's frame in it.

        Raises:
            OSError: it cannot be made or written; nothing of it is left behind.
        """
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
        descriptor = os.open(path, flags, OWNER)
        segment = cls(signal, number, path, descriptor)
        status = os.fstat(descriptor)
        segment._file = (status.st_dev, status.st_ino)
        if status.st_mode & OWNER != OWNER:  # the program's umask would keep its own user from reading it
            os.fchmod(descriptor, OWNER)
        try:
            segment._write(identity)
        except OSError:
            segment.abandon()
            segment._unlink()
            raise
        return segment

    def append(self, frame: bytes, records: int) -> None:
        """Append one frame, all or nothing.

        Raises:
            OSError: nothing was appended. Unless the disk was full, the segment is closed and a new one must be begun.
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
        """Close the file, and remove it if it holds no records."""
        if self.descriptor < 0:
            return
        is_empty, is_own = self.frames == 0, self.is_own()
        self.abandon()
        if is_empty and is_own:
            self._unlink()

    def abandon(self) -> None:
        """Close the descriptor and nothing else: what a forked child may do with its parent's file."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0 and self._holds(descriptor):
            try:
                os.close(descriptor)
            except OSError:
                return

    def is_own(self) -> bool:
        """Say whether the descriptor still is this file: a host that daemonizes closes and reuses them all."""
        return self.descriptor >= 0 and self._holds(self.descriptor)

    def move(self, directory: Path) -> None:
        """Move the file, open or closed; one that is gone only gets its new name.

        Raises:
            OSError: it stays where it was.
        """
        target = directory / self.path.name
        if self.path.exists():
            os.rename(self.path, target)
        self.path = target

    def touch(self) -> None:
        """Set the file's time of modification to now.

        Raises:
            OSError: the file is gone or not ours to touch.
        """
        os.utime(self.path)

    def _unlink(self) -> None:
        try:
            self.path.unlink()
        except OSError:
            return  # an empty segment does no harm

    def _holds(self, descriptor: int) -> bool:
        try:
            status = os.fstat(descriptor)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._file

    def _write(self, data: bytes) -> None:
        if not self.is_own():
            raise OSError(errno.EBADF, "the descriptor was closed by the program", str(self.path))
        if not os.fstat(self.descriptor).st_nlink:
            raise OSError(errno.ENOENT, "the file was removed", str(self.path))
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self.descriptor, rest) :]
        except OSError:
            self._cut()
            raise
        self.size += len(data)

    def _cut(self) -> None:
        """Cut the file back to its whole frames; where that fails too, begin a new one."""
        try:
            os.ftruncate(self.descriptor, self.size)
        except OSError:
            self.abandon()
