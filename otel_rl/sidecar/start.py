"""Starting the sidecar from a training process: detached, at most once for each node, never in the way."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from otel_rl.clock import monotonic
from otel_rl.config import ConfigurationError
from otel_rl.guard import guard, say
from otel_rl.journal.identity import WriterIdentity
from otel_rl.process.state import state
from otel_rl.sidecar import owner
from otel_rl.sidecar.owner import ROLE
from otel_rl.sidecar.settings import targets

CHECK_S: Final = 5.0
WATCH_AFTER_S: Final = 10.0
"""Without an endpoint a sidecar starts after this time: no stall is found earlier."""
LAST_WAIT_S: Final = 60.0
"""Longest time between two starts if sidecars die one after the other."""
PROGRAM: Final = Path(__file__).resolve().parent / "bin" / "otel-rl"
"""What is started: a script, alone in its folder, which Python puts before the standard library. ``python -m`` would
put the working directory there, with a program's own ``queue.py``; -P, which stops that, is of 3.11."""
ONE_THREAD: Final = {"OPENBLAS_NUM_THREADS": "1"}
"""Without it numpy starts a thread for each core; the sidecar multiplies no matrices."""
NOT_INHERITED: Final = ("LD_PRELOAD", "PYTHONSTARTUP", "PYTHONINSPECT")


class Keeper:
    """Keeps a sidecar of this node alive while this process records."""

    def __init__(
        self,
        *,
        is_forbidden: bool = False,
        only_watches: bool = False,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Prepare; nothing is started before ``check``.

        Args:
            is_forbidden: the user starts the sidecar.
            only_watches: nothing is sent: the sidecar watches for stalls, and short programs need none.
            environ: what the sidecar gets, by which `otel-rl run` knows it as one of its command.
        """
        self._is_forbidden = is_forbidden
        self._environ = environ
        self._only_watches = only_watches
        self._gave_up = is_forbidden and only_watches
        self._next_check = monotonic() + WATCH_AFTER_S if only_watches else 0.0
        self._wait_s = CHECK_S
        self._launcher = 0
        """Pid of the process that starts the sidecar and ends."""
        self._started: Path | None = None
        """The directory that it was started for; None if a signal ended it."""

    def check(self, directory: Path, me: WriterIdentity) -> None:
        """Start a sidecar unless one lives; every few seconds only. Never waits for another process."""
        self._reap(directory)
        if self._may_not(directory, me) or monotonic() < self._next_check:
            return
        self._next_check = monotonic() + self._wait_s
        if self._living(directory, me) is not None:
            self._wait_s = CHECK_S
        elif not self._launcher:
            self._wait_s = min(2 * self._wait_s, LAST_WAIT_S)
            self._start(directory)

    def check_at_end(self, directory: Path, me: WriterIdentity) -> None:
        """Start a sidecar at the end of this process, unless one lives or is being started.

        If the end of the journal is in another folder, because its disk was full, that folder has one of its own.
        """
        if self._only_watches:
            return
        if state.directory is not None and directory != state.directory.absolute():
            say("otel_rl: if the records in %s are not sent automatically, run: otel-rl ship %s", directory, directory)
        was_starting = self._launcher
        self._reap(directory)
        is_being_started = was_starting and self._started == directory
        if not (self._may_not(directory, me) or is_being_started or self._living(directory, me)):
            self._start(directory)

    def _may_not(self, directory: Path, me: WriterIdentity) -> bool:
        """Return whether no sidecar can or may be started; if the user forbids it and none lives, that is said once."""
        if self._is_forbidden and not self._gave_up:
            self._gave_up = True
            if self._living(directory, me) is None:
                self._give_up(directory, "OTEL_RL_SIDECAR=false")
        return self._gave_up

    def _living(self, directory: Path, me: WriterIdentity) -> WriterIdentity | None:
        return owner.living(directory, me.boot_id, sends=not self._only_watches)

    def _start(self, directory: Path) -> None:
        try:
            self._launcher, self._started = start(directory, self._environ), directory
        except (OSError, ValueError, TypeError) as error:  # TypeError: an embedded interpreter has no executable
            self._give_up(directory, type(error).__name__)

    def _reap(self, directory: Path) -> None:
        """Forget the launcher once it has ended; one that a signal ended says nothing of the start."""
        if not self._launcher:
            return
        pid, status = self._launcher, 0
        with suppress(ChildProcessError):  # the program waited for all its children, and got ours
            pid, status = os.waitpid(self._launcher, os.WNOHANG)
        if pid:
            self._launcher = 0
        if os.WIFSIGNALED(status):
            self._started = None
        elif status:
            self._give_up(directory, f"it ended with {os.waitstatus_to_exitcode(status)}")

    def _give_up(self, directory: Path, reason: str) -> None:
        self._gave_up = True
        if self._only_watches:
            say("otel_rl: no process is started that watches for stalls (%s)", reason)
            return
        hint = "send them with: otel-rl ship %s --follow"
        say(f"otel_rl: no process is started that sends the records (%s); {hint}", reason, directory)


def make_keeper(*, is_forbidden: bool) -> Keeper | None:
    """Make what keeps a sidecar alive; without an endpoint it only watches. An error costs no recording."""
    with guard("find where to send"):
        try:
            return Keeper(is_forbidden=is_forbidden, only_watches=not targets())
        except ConfigurationError as error:
            say("otel_rl: %s; the records wait for `otel-rl ship`", error)
    return None


def start(directory: Path, environ: Mapping[str, str] = os.environ) -> int:
    """Start a sidecar, which ends at once if there is one already.

    What is started forks at once, and ends when the sidecar has imported what it needs. The sidecar has no parent and a
    session of its own, so that neither the launcher's signals nor the trainer's death end it. `ps` shows it as
    ``otel-rl sidecar``. Cost: 2 ms.

    Returns:
        Pid of the process that the caller must wait for.

    Raises:
        OSError: no process can be started.
    """
    inherited = {key: value for key, value in environ.items() if key not in NOT_INHERITED}
    path = [str(Path(__file__).resolve().parents[2]), *environ.get("PYTHONPATH", "").split(os.pathsep)]
    nowhere = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
    return os.posix_spawn(
        sys.executable,
        [sys.executable, str(PROGRAM), ROLE, str(directory)],
        {**ONE_THREAD, **inherited, "OTEL_RL_ENABLED": "false", "PYTHONPATH": os.pathsep.join(filter(None, path))},
        file_actions=nowhere,
        setpgroup=0,  # a signal to the group of its trainer must not end it before it forks
        setsigmask=(),  # a thread that blocks signals must not make a sidecar that ignores them
    )
