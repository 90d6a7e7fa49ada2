"""A child process that behaves as if the user had started it, with its own streams, signals and exit code."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Mapping, Sequence
from typing import Final

FORWARDED: Final = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT,
)  # fmt: skip
IGNORED_BY_PYTHON: Final = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores them for itself; a child would inherit that."""
LOOK_S: Final = 1.0
"""The child is checked this often without a signal: another thread may get its SIGCHLD."""
NONE: Final = 0
FROM_KERNEL: Final = 0
"""A signal's code above this: the terminal sent it, so the child in the same process group has it already."""


def run_child(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a command to its end and pass signals on to it.

    Returns:
        Its exit code, or 128 + the signal that killed it.

    Raises:
        OSError: it cannot be started.
    """
    if not command[0]:  # posix_spawn says that with a ValueError
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    environ = {name: value for name, value in environ.items() if name}  # nor does it accept `=x`
    watched = {*FORWARDED, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    of_children = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it is ignored the code is lost
    try:
        pid = os.posix_spawnp(command[0], list(command), environ, setsigmask=before, setsigdef=IGNORED_BY_PYTHON)
        code = _wait(pid, watched)
        _forget(watched)
    finally:
        signal.signal(signal.SIGCHLD, of_children)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return 128 - code if code < 0 else code


def _wait(pid: int, watched: set[signal.Signals]) -> int:
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        number, is_from_terminal = _next_signal(watched)
        if number not in {NONE, signal.SIGCHLD} and not is_from_terminal:
            os.kill(pid, number)


def _forget(watched: set[signal.Signals]) -> None:
    """Discard the signals that came when the child was gone: they were meant for it."""
    while arrived := signal.sigpending() & watched:
        if hasattr(signal, "sigtimedwait"):
            signal.sigtimedwait(arrived, 0)  # another thread may have been faster
        else:
            signal.sigwait(arrived)


def _next_signal(watched: set[signal.Signals]) -> tuple[int, bool]:
    """Wait a while for a signal; return which, and whether the terminal sent it to the child as well."""
    if hasattr(signal, "sigtimedwait"):
        info = signal.sigtimedwait(watched, LOOK_S)
        return (NONE, False) if info is None else (info.si_signo, info.si_code > FROM_KERNEL)
    number = signal.sigwait(watched)  # macOS: who sent it is not known, and Ctrl-C comes from a terminal nearly always
    return number, number == signal.SIGINT
