"""Standard output and standard error that are full, closed or of another encoding: none of it changes an exit code."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress


def prepare() -> None:
    """Replace what the encoding of a stream cannot say, and a closed stream by one into nothing."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the shell: `>&-`
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def settle() -> None:
    """Write what is left and drop what cannot be written: the interpreter's own attempt would end with 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            drop(stream.fileno())


def drop(descriptor: int) -> None:
    """Let everything that is still written to a descriptor vanish."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
