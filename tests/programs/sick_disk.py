"""The training program of ``steps.py`` on a disk that falls ill for this process: argument 1 says how.

    python sick_disk.py slow|hangs|read-only STEPS END [SECONDS_PER_STEP]

The illness begins with the twentieth write to the journal; the process beside it that sends, and readers, see a healthy
disk: what they do with an ill one is tested with real file systems.
"""

from __future__ import annotations

import errno
import itertools
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import steps

from otel_rl.journal import segment

real_write, real_open = os.write, os.open
writes = itertools.count(1)


class SickOs:
    """Stands for ``os`` where segments are written."""

    def __init__(self, illness: str, first: int = 20) -> None:
        self.illness = illness
        self.first = first
        self.is_ill = False

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def write(self, descriptor: int, data: Any) -> int:
        self.is_ill = self.is_ill or next(writes) > self.first
        if self.is_ill and self._is_here(f"/proc/self/fd/{descriptor}"):
            if self.illness == "slow":
                time.sleep(0.3)
            elif self.illness == "hangs":
                threading.Event().wait()
            else:
                raise OSError(errno.EROFS, "Read-only file system")
        return real_write(descriptor, data)

    def open(self, path: Any, *arguments: Any) -> int:
        if self.is_ill and self.illness == "read-only" and self._is_here(str(Path(path).parent)):
            raise OSError(errno.EROFS, "Read-only file system")
        return real_open(path, *arguments)

    def ftruncate(self, descriptor: int, size: int) -> None:
        if self.is_ill and self.illness == "read-only":
            raise OSError(errno.EROFS, "Read-only file system")
        os.ftruncate(descriptor, size)

    @staticmethod
    def _is_here(path: str) -> bool:
        """Whether it is on the ill disk: the folder for temporary files is on another one."""
        return os.path.realpath(path).startswith(os.path.realpath(os.environ["OTEL_RL_DIR"]) + os.sep)


if __name__ == "__main__":
    segment.os = SickOs(sys.argv.pop(1))  # type: ignore[assignment]
    steps.main()
