"""Making a directory that only its owner uses."""

from __future__ import annotations

from pathlib import Path
from stat import S_IMODE

OWNER = 0o700
"""The mode of such a directory."""


def make_directory(directory: Path) -> None:
    """Make a directory and its missing parents, for their owner alone whatever the umask; what is there stays as it is.

    Raises:
        OSError: it is not there and cannot be made.
    """
    try:
        directory.mkdir(mode=OWNER)
    except FileNotFoundError:
        if directory.parent.is_dir():  # as below /proc
            raise
        make_directory(directory.parent)
        make_directory(directory)
    except OSError:  # a file system that can only be read says that first
        if not directory.is_dir():
            raise
    else:
        mode = directory.stat().st_mode
        if mode & OWNER != OWNER:
            directory.chmod(S_IMODE(mode) | OWNER)
