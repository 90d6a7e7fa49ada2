"""Where runs are kept: below the root that the user names, or in a temporary folder if that cannot be written."""

from __future__ import annotations

import os
import tempfile
import uuid
from pathlib import Path
from stat import S_ISDIR

from otel_rl.guard import say
from otel_rl.journal.filesystem import make_directory
from otel_rl.process.identity import folder_name
from otel_rl.process.state import state

PREFIX = "otel_rl_runs-"


class NowhereError(OSError):
    """Nothing can be recorded: no directory can be written."""


def run_directory() -> Path:
    """Choose where this process journals: the run's directory, or a pending one until the run's name is known.

    Raises:
        NowhereError: neither the root of the runs nor a temporary folder can be written.
    """
    root = usable_root(state.config.directory)
    run_id = state.identity.run_id
    return root / folder_name(run_id) if run_id else root / ".pending" / uuid.uuid4().hex


def usable_root(directory: Path) -> Path:
    """Return the root of the runs, or a temporary folder if the root cannot be written.

    Raises:
        NowhereError: neither can be written; the message says what to set.
    """
    root = directory
    try:
        root = Path(os.path.abspath(directory))
        make_directory(root)
        if os.access(root, os.W_OK | os.X_OK):
            return root
        problem = "no permission to write"
    except OSError as error:
        problem = error.strerror or str(error)
    try:
        fallback = fallback_root()
    except OSError:
        raise NowhereError(
            f"nothing can be recorded: {root} cannot be used ({problem}), and no temporary folder can be written; "
            "set OTEL_RL_DIR to a directory that can be written"
        ) from None
    say("otel_rl: OTEL_RL_DIR %s cannot be used (%s); this run is recorded in %s", root, problem, fallback)
    return fallback


def fallback_root() -> Path:
    """Make the temporary folder for runs whose root cannot be written, for this user only.

    It has a fixed name, so that readers find it; if another user made it, it gets another name.

    Raises:
        OSError: no temporary folder can be written.
    """
    folder = fallback_name()
    try:
        make_directory(folder)
        return folder if _is_ours(folder) else Path(tempfile.mkdtemp(prefix=PREFIX))
    except OSError:
        return Path(tempfile.mkdtemp(prefix=PREFIX))


def fallback_name() -> Path:
    """Return where this folder is, for readers; it need not exist.

    Raises:
        OSError: no temporary folder can be written.
    """
    return Path(tempfile.gettempdir()) / f"{PREFIX}{_user()}"


def redirected(run: Path) -> Path | None:
    """Return where a process whose disk was full put the end of its journal; None if there is nothing of this user."""
    try:
        folder = fallback_name()
        return folder / run.name if _is_ours(folder) and run.parent != folder else None
    except OSError:
        return None


def _is_ours(folder: Path) -> bool:
    status = folder.lstat()
    return S_ISDIR(status.st_mode) and status.st_uid == _user() and not status.st_mode & 0o077


def _user() -> int:
    return os.getuid() if hasattr(os, "getuid") else 0
