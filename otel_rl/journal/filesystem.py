"""Directories for their owner only, and the age of files by the clock that stamps them."""

from __future__ import annotations

import os
import tempfile
from math import inf
from pathlib import Path
from stat import S_IMODE
from typing import Final

from otel_rl.clock import monotonic, time

OWNER: Final = 0o700
KEEP_S: Final = 60.0
"""The clock of a file system is asked at most once in this time."""

_clocks: dict[int, tuple[float, float]] = {}
"""When each file system's clock was asked (monotonic), and how far it is ahead of the monotonic clock, s."""


def make_directory(directory: Path) -> None:
    """Make a directory and its missing parents for their owner only, whatever the umask.

    Raises:
        OSError: it is not there and cannot be made.
    """
    try:
        directory.mkdir(mode=OWNER)
    except FileNotFoundError:
        if directory.parent.is_dir():  # for example below /proc
            raise
        make_directory(directory.parent)
        make_directory(directory)
    except OSError:  # a read-only file system says that before it says that the directory exists
        if not directory.is_dir():
            raise
    else:
        mode = directory.stat().st_mode
        if mode & OWNER != OWNER:
            directory.chmod(S_IMODE(mode) | OWNER)


def silent_s(path: Path) -> float:
    """Return for how long a file was not modified, s; negative if its time is in the future.

    Raises:
        OSError: the file is gone, or its file system does not answer.
    """
    return monotonic() - (path.stat().st_mtime - ahead_s(path.parent))


def ahead_s(directory: Path) -> float:
    """Return how far the clock that stamps the files of a directory is ahead of this host's monotonic clock, s.

    A file server has a clock of its own. It is read from a temporary file; if none can be made, this host's clock
    is used.

    Raises:
        OSError: the directory is gone, or its file system does not answer.
    """
    device = directory.stat().st_dev
    asked, ahead = _clocks.get(device, (-inf, 0.0))
    if monotonic() - asked > KEEP_S:
        try:
            with tempfile.TemporaryFile(dir=directory) as file:
                ahead = os.fstat(file.fileno()).st_mtime - monotonic()
        except OSError:
            return time() - monotonic()
        _clocks[device] = monotonic(), ahead
    return ahead
