"""Stacks of all threads that a signal makes a process append to a file, in C, so also while the interpreter is held.

``faulthandler`` writes them, to the number of a descriptor that it keeps. ``_stacks.c`` opens the file under this
number when the signal comes: in between no descriptor is open that the program could close and replace.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import resource
import signal
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_rl.journal.in_c import find_native
from otel_rl.probes.python_stacks import catches
from otel_rl.process.memory import Memory

FORM: Final = 1
"""The interface of ``_stacks.c``; a build of another version is not used."""
DUMP_SIGNAL: Final = getattr(signal, "SIGRTMAX", 0) and signal.SIGRTMAX - 7
"""Its default would end the process: it is sent only to one whose kernel says that it is caught."""
HIGHEST: Final = 4_095
"""The number is this one, or the highest that the process may have: the system gives out the lowest."""

native = find_native("otel_rl.probes._stacks", FORM)


@dataclass(eq=False)
class DumpHandler(Memory):
    """The handler of the signal."""

    is_ours: bool = False
    path: bytes = b""
    """Path of the file of stacks; empty if there is none."""

    def renew(self) -> None:
        """Stay until ``uninstall``, also in a forked child: the parent's stall may be that of a loader's worker."""


handler = DumpHandler.keep("handler")


def install() -> None:
    """Take the signal, unless the program has taken it. Only the main thread does.

    ``faulthandler`` gives the first thread that asks it an alternate stack for handlers. A thread that ends must not
    take that along, and the main thread needs it, should the program enable ``faulthandler`` later.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if native is None or not DUMP_SIGNAL or not is_main or not is_default() or catches(os.getpid(), DUMP_SIGNAL):
        return
    with suppress(OSError):  # no descriptor is free
        number = _free_number()
        try:
            faulthandler.unregister(DUMP_SIGNAL)  # where it was replaced, it would take itself for registered
            faulthandler.register(DUMP_SIGNAL, file=number, all_threads=True)
        finally:
            os.close(number)
        native.install(DUMP_SIGNAL, number)
        handler.is_ours = True


def _free_number() -> int:
    """Open nothing under a high number.

    Raises:
        OSError: none is free.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    try:
        return fcntl.fcntl(nowhere, fcntl.F_DUPFD_CLOEXEC, HIGHEST if limit < 0 else min(limit - 1, HIGHEST))
    finally:
        os.close(nowhere)


def append_to(path: Path) -> int:
    """Let the signal append to a file; return its number, or 0 if the process does not take it for us."""
    if native is None or not handler.is_ours or not is_default():
        return 0
    handler.path = os.fsencode(path)
    native.write_to(handler.path)
    return DUMP_SIGNAL


def append_nowhere(instead_of: Path) -> None:
    """Let the signal append to this file no more; a recording that began since has another."""
    if native is not None and handler.path == os.fsencode(instead_of):
        handler.path = b""
        native.write_to(b"")


def uninstall() -> None:
    """Restore the default of the signal."""
    if handler.is_ours:
        handler.is_ours = False
        if is_default():
            faulthandler.unregister(DUMP_SIGNAL)


def is_default() -> bool:
    """Return whether Python has no handler for the signal."""
    return not DUMP_SIGNAL or signal.getsignal(DUMP_SIGNAL) is signal.SIG_DFL
