"""Starting the sidecar from a training process: detached, at most once for each node, never in the way."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Final

from otel_rl.guard import say
from otel_rl.journal.identity import WriterIdentity
from otel_rl.sidecar import owner

LOOK_S: Final = 5.0
"""How long after the first look comes the next one."""
WAIT_S: Final = 10.0
"""How long to wait for the process in between, which only starts the sidecar and ends."""
NOT_INHERITED: Final = ("LD_PRELOAD", "PYTHONSTARTUP", "PYTHONINSPECT")


class Keeper:
    """Sees to it that a sidecar of this node lives as long as this process records."""

    def __init__(self) -> None:
        self._next_look = 0.0
        self._wait_s = LOOK_S
        self._forbidden = False

    def look(self, directory: Path, me: WriterIdentity) -> None:
        """Start a sidecar unless one lives; now and then only, and ever more rarely where they die."""
        if self._forbidden or monotonic() < self._next_look:
            return
        if owner.living(directory, me.boot_id) is None:
            self._forbidden = not start(directory)
            self._wait_s *= 2
        self._next_look = monotonic() + self._wait_s


def start(directory: Path, environ: Mapping[str, str] = os.environ) -> bool:
    """Start a sidecar, which ends at once if there is one already; say whether that was possible.

    The process is its own session, so that neither the launcher's signals nor the trainer's death end it, and it is
    nobody's child: the trainer never sees it in ``wait``. Cost: 0.3 s of waiting, for a thread that may wait.
    """
    command = [sys.executable, "-m", "otel_rl.sidecar", str(directory)]
    inherited = {key: value for key, value in environ.items() if key not in NOT_INHERITED}
    path = [str(Path(__file__).resolve().parents[2]), *filter(None, [environ.get("PYTHONPATH")])]
    try:
        code = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**inherited, "OTEL_RL_ENABLED": "false", "PYTHONPATH": os.pathsep.join(path)},
            start_new_session=True,
            timeout=WAIT_S,
            check=False,
        ).returncode
        reason = f"exit code {code}"
    except (OSError, subprocess.SubprocessError) as error:
        code, reason = -1, type(error).__name__
    if code:
        say(
            "otel_rl: no process can be started that sends the records (%s); send them with: otel-rl ship %s --follow",
            reason,
            directory,
        )
    return code == 0
