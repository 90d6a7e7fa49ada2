"""A child process that behaves as if the user had started it, with its own streams, signals and exit code.

A signal that was sent to this process alone is passed on to the command. One that the command has got itself is not: a
terminal and GNU ``timeout`` signal the whole process group, SLURM each process of a job. Nothing in a signal tells
these apart. So idle witnesses stand beside the command: what reached them has reached the command.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from math import inf
from time import monotonic, sleep
from typing import Final

FORWARDED: Final = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT,
)  # fmt: skip
IGNORED_BY_PYTHON: Final = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores them for itself; a child would inherit that."""
LOOK_S: Final = 1.0
"""The child is checked this often without a signal: another thread may get its SIGCHLD."""
GRACE_S: Final = 0.5
"""Who signals the processes of a job one by one reaches the last of them this long after the first."""
NONE: Final = 0
WITNESS: Final = f"""
# what reaches this process has reached the command, too: it is not passed on
import os, signal
os.set_blocking(1, False)
signal.set_wakeup_fd(1)
for number in {[int(number) for number in FORWARDED]}:
    signal.signal(number, lambda *_: None)
signal.pthread_sigmask(signal.SIG_SETMASK, ())
os.read(0, 1)
"""
"""Writes the number of each signal that it gets, and ends with the process that started it."""


class Witness:
    """An idle process that gets what is sent to all processes of the command, or of the command's group.

    It has the arguments of the command, so ``pkill -f train.py`` finds both; ``pkill otel-rl`` finds neither. Cost: 8
    MB, and 15 ms of CPU beside the start of the command.
    """

    def __init__(self, command: Sequence[str], *, is_apart: bool) -> None:
        """Start it, in our process group or apart; the signals that are blocked here wait until it is ready."""
        self._got_at: dict[int, float] = {}
        self._process: subprocess.Popen[bytes] | None = None
        with suppress(OSError, ValueError, TypeError):  # no process can be started: then every signal is passed on
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", WITNESS, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=is_apart,
                bufsize=0,
            )

    def look(self) -> None:
        """Note what it has got since the last look."""
        if self._process is not None and self._process.stdout is not None:
            os.set_blocking(self._process.stdout.fileno(), False)
            self._got_at |= dict.fromkeys(self._process.stdout.read(1 << 16) or b"", monotonic())

    def has(self, number: int, came: float) -> bool:
        """Return whether it got a signal, too, that came here at a time (monotonic, s)."""
        return abs(self._got_at.get(number, -inf) - came) <= GRACE_S or number in self._pending()

    def _pending(self) -> set[int]:
        """Return the signals that it will get once it runs: after days it is swapped out, and a machine may be busy."""
        masks: list[str] = []
        if self._process is not None:
            with suppress(OSError), open(f"/proc/{self._process.pid}/status") as status:
                masks = [line.split()[1] for line in status if line.startswith(("SigPnd:", "ShdPnd:"))]
        return {number for number in FORWARDED for mask in masks if int(mask, 16) >> (number - 1) & 1}

    def close(self) -> None:
        """End it, also where it was stopped."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


def run_child(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a command to its end and pass on the signals that it has not got itself.

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
        code = _wait(pid, watched, command)
        _forget(watched)
    finally:
        signal.signal(signal.SIGCHLD, of_children)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return 128 - code if code < 0 else code


def _wait(pid: int, watched: set[signal.Signals], command: Sequence[str]) -> int:
    """Return how the command ended. It has left our process group where it is a shell's job, or ``timeout``."""
    held: deque[tuple[int, float]] = deque()
    """Signals that came here, and when; whether they reached the witnesses is not known yet."""
    with closing(Witness(command, is_apart=False)) as beside, closing(Witness(command, is_apart=True)) as apart:
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            number = _next_signal(watched, GRACE_S / 10 if held else LOOK_S)
            beside.look()
            apart.look()
            if number in FORWARDED:
                held.append((number, monotonic()))
            while held and monotonic() - held[0][1] > GRACE_S:
                witness = beside if os.getpgid(pid) == os.getpgrp() else apart
                if not witness.has(*held[0]):
                    os.kill(pid, held[0][0])
                held.popleft()


def _forget(watched: set[signal.Signals]) -> None:
    """Discard the signals that came when the child was gone: they were meant for it."""
    while signal.sigpending() & watched:
        _next_signal(watched, 0)


def _next_signal(watched: set[signal.Signals], wait_s: float) -> int:
    """Wait a while for a signal; return which, or ``NONE``: another thread may be faster."""
    if hasattr(signal, "sigtimedwait"):
        info = signal.sigtimedwait(watched, wait_s)
        return NONE if info is None else info.si_signo
    sleep(min(wait_s, GRACE_S / 10))  # macOS
    return signal.sigwait(watched) if signal.sigpending() & watched else NONE
