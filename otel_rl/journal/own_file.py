"""Files that stay open from one call to the next, in a process whose descriptors belong to the program."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

OWNER: Final = 0o600


class OwnFile:
    """An open file under a number that the program may take from it.

    A program that becomes a daemon closes all descriptors, and the files that it opens next get the same numbers. So
    ask ``is_own`` before each use of the number: it compares device and inode. ``close`` asks by itself. Where C code
    would keep the number and could not ask, give it none.
    """

    __slots__ = ("_file", "number")

    def __init__(self, path: str | Path, flags: int, mode: int = OWNER) -> None:
        """Open a file, which no child process inherits by an exec.

        Raises:
            OSError: it cannot be opened.
        """
        self.number = os.open(path, flags | os.O_CLOEXEC, mode)
        status = os.fstat(self.number)
        self._file = status.st_dev, status.st_ino

    def __enter__(self) -> OwnFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def status(self) -> os.stat_result | None:
        """Return what the system says of the file; None if the number is no longer its. Cost: 1 us."""
        if self.number < 0:
            return None
        try:
            status = os.fstat(self.number)
        except OSError:
            return None
        return status if (status.st_dev, status.st_ino) == self._file else None

    def is_own(self) -> bool:
        """Return whether the number still is this file's."""
        return self.status() is not None

    def close(self) -> None:
        """Close the file, unless the number is another's; a forked child may do that with its parent's file."""
        if self.is_own():
            with suppress(OSError):
                os.close(self.number)
        self.number = -1
