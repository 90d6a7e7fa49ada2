"""Sending while a command runs: `otel-rl run` keeps a sidecar alive as every training process does.

It helps trainers that may not start processes, or are killed before they do. It begins with the run's directory, which
is known if the run has a name; otherwise what is left is sent at the end.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Final

from otel_rl.config import Config, ConfigurationError
from otel_rl.guard import guard
from otel_rl.journal.identity import WriterIdentity
from otel_rl.process.identity import folder_name
from otel_rl.sidecar.settings import targets
from otel_rl.sidecar.start import Keeper
from otel_rl.version import __version__

CHECK_S: Final = 1.0
JOIN_S: Final = 2.0
"""How long the end waits for a check that hangs, on a file server that is gone."""


@contextmanager
def sending(
    root: Path, run_id: str, config: Config, environ: Mapping[str, str] = os.environ
) -> Iterator[Keeper | None]:
    """Keep a sidecar of a run alive within the block; yields who does it, None if nothing is to be sent.

    Args:
        root: where runs are recorded.
        run_id: the run's; empty if it gets its name later.
        config: of the command.
        environ: the command's, which the sidecar gets too.
    """
    keeper = None
    if config.active and config.sidecar:
        with suppress(ConfigurationError), guard("see where to send"):  # the trainer and the doctor say what is wrong
            keeper = Keeper(environ=environ) if targets() else None
    over = Event()
    thread = Thread(target=_keep, args=(keeper, root / folder_name(run_id), over), name="otel_rl-sidecar", daemon=True)
    if keeper is not None and run_id:
        with guard("start the thread that keeps the sidecar alive"):
            start_without_signals(thread)
    try:
        yield keeper
    finally:
        over.set()
        if thread.is_alive():
            thread.join(JOIN_S)


def send_rest(keeper: Keeper | None, directories: Iterable[Path]) -> None:
    """Start a sidecar for what is left of these runs, once all is recorded."""
    if keeper is not None:
        for directory in directories:
            with guard("start the sidecar"):
                keeper.check_at_end(directory, _me())


def _keep(keeper: Keeper, directory: Path, over: Event) -> None:
    me = _me()
    while not over.wait(CHECK_S):
        if directory.is_dir():
            with guard("keep the sidecar alive"):
                keeper.check(directory, me)


def _me() -> WriterIdentity:
    return WriterIdentity.current("run", 0, __version__)


def start_without_signals(thread: Thread) -> None:
    """Start a thread that takes no signal: the command's are waited for elsewhere, and would end this process."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
