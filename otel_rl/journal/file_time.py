"""For how long a file was not modified, by the clock that stamps it: a file server's may be hours from ours."""

from __future__ import annotations

import os
import tempfile
from math import inf
from pathlib import Path
from time import monotonic, time
from typing import Final

KEEP_S: Final = 60.0
"""So long it is known what time it is on a file system."""

_known: dict[int, tuple[float, float]] = {}
"""By file system: when it was asked for its time (monotonic, s), and how far that is ahead of that clock, s."""


def silent_s(path: Path) -> float:
    """Return for how long a file was not modified, s; below 0 where its time is to come.

    Raises:
        OSError: the file is gone, or its file system does not answer.
    """
    return monotonic() - (path.stat().st_mtime - ahead_s(path.parent))


def ahead_s(directory: Path) -> float:
    """Return how far the clock that stamps the files of a directory is ahead of the monotonic clock of this host, s.

    A file is made there for a moment, once a minute at most. Where none can be made, files are taken to be stamped by
    the clock of this host.

    Raises:
        OSError: the directory is gone, or its file system does not answer.
    """
    device = directory.stat().st_dev
    asked, ahead = _known.get(device, (-inf, 0.0))
    if monotonic() - asked > KEEP_S:
        try:
            with tempfile.TemporaryFile(dir=directory) as file:
                ahead = os.fstat(file.fileno()).st_mtime - monotonic()
        except OSError:
            return time() - monotonic()
        _known[device] = monotonic(), ahead
    return ahead
