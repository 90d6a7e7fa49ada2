"""Find the run that a person means."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from math import inf
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from otel_rl.journal.filesystem import ahead_s
from otel_rl.journal.read import JournalNotFound, Run, open_run
from otel_rl.process.identity import folder_name

PENDING = ".pending"
"""A folder below the root, for processes that do not know the name of their run."""
BESIDE_S = 60.0
"""Processes touch their journals more often while they live."""
HOW_TO_RECORD = "`otel-rl run -- python train.py` records one, `otel-rl demo` shows one"


def find_run(name: str | None, root: Path) -> Path:
    """Find a run by path (its directory, or one of its files), by its name below the root, or the newest one.

    A name without a separator is first a run below the root, then one in the folder for temporary files, then a path.
    It may be the name of the folder, or the one that the user gave.

    Raises:
        JournalNotFound: there is none; the message says what to do.
    """
    if name is None:
        return newest_run(root)
    below = [place / folder for folder in (name, folder_name(name)) for place in roots(root)]
    is_name = os.path.basename(name) == name and name not in (os.curdir, os.pardir)
    candidates = [*below, Path(name)] if is_name else [Path(name), *below]
    for error in (0, errno.EACCES):  # what can be opened comes first
        for path in candidates:
            if _error(path) == error:
                return _not_empty(path)
    raise JournalNotFound(
        f"there is no run {name!r}: it is neither a directory nor a run below {root} (OTEL_RL_DIR). {_known(root)}"
    )


def open_whole(path: Path) -> Run:
    """Open a run with what its processes wrote elsewhere when their disk was full.

    Raises:
        JournalNotFound: there is none, or it cannot be read.
    """
    from otel_rl.process.directories import redirected  # as in _fallback

    return open_run(path, redirected(path.absolute()))


def _not_empty(path: Path) -> Path:
    with suppress(OSError):
        if path.is_dir() and not any(path.iterdir()):
            raise JournalNotFound(
                f"{path} is empty: nothing was recorded there. A process makes its first file half a second after "
                f"`otel_rl.instrument()`; {HOW_TO_RECORD}"
            )
    return path


def newest_run(root: Path) -> Path:
    """Find the run that was written last; if the root cannot be written, also among those that went elsewhere.

    Raises:
        JournalNotFound: there is none; the message says what to do.
    """
    places = [root] if _is_writable(root) else roots(root)
    runs = [run for place in places for run in recorded_below(place)]
    if not runs:
        why = _why_not(root)
        raise JournalNotFound(
            f"nothing was recorded below {root} (OTEL_RL_DIR){why}; {HOW_TO_RECORD}{_elsewhere(root)}"
        )
    return max(runs, key=recency)


def roots(root: Path) -> list[Path]:
    """List where runs are kept: the root, and this user's folder for runs that cannot be written there."""
    fallback = _fallback()
    return [root] if fallback in (None, root) else [root, fallback]


def is_fallback(run: Path) -> bool:
    """Return whether a run lies in the folder for runs that cannot be written where they belong."""
    return _fallback() in run.absolute().parents


def _fallback() -> Path | None:
    from otel_rl.process.directories import fallback_name  # reading needs nothing else of the recorder

    with suppress(OSError):
        return fallback_name()
    return None


def recorded_below(root: Path) -> list[Path]:
    """List the directories below a root that have a journal, by name; none if the root cannot be read."""
    candidates: list[Path] = []
    for folder in (root, root / PENDING):
        with suppress(OSError):  # it is missing, or another user's
            candidates += folder.iterdir()
    return sorted(path for path in candidates if is_run(path))


def recency(run: Path) -> float:
    """Return how new a run is, a larger number for a newer one.

    A process that waits for its run's name counts as older: the run that it waits for is meant, and names it.
    """
    return written_at(run) - (BESIDE_S if run.parent.name == PENDING else 0.0)


def written_at(run: Path) -> float:
    """Return when a run's journal was written last, s of this host's monotonic clock; minus infinity without one."""
    times = []
    for segment in run.glob("*.otlp"):
        with suppress(OSError):  # the size cap removed it, or it is a link to nowhere
            found = segment.stat()
            if S_ISREG(found.st_mode):
                times.append(found.st_mtime)
    with suppress(OSError):
        return max(times) - ahead_s(run) if times else -inf
    return -inf


def is_run(path: Path) -> bool:
    try:
        return path.is_dir() and any(segment.is_file() for segment in path.glob("*.otlp"))
    except OSError:
        return False


def _error(path: Path) -> int | None:
    try:
        path.stat()
    except OSError as error:
        return error.errno
    return 0


def _why_not(root: Path) -> str:
    try:
        next(root.iterdir(), None)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f", which cannot be read: {error.strerror}"
    return ""


def _is_writable(root: Path) -> bool:
    """Return whether a new run can be kept below a root, which may be made first."""
    for place in (root, *root.parents):
        try:
            return S_ISDIR(place.stat().st_mode) and os.access(place, os.W_OK | os.X_OK)
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return False


def _elsewhere(root: Path) -> str:
    others = [place for place in roots(root)[1:] if recorded_below(place)]
    return "".join(f"; {place} holds runs that could not be written where they belong" for place in others)


def _known(root: Path) -> str:
    names = [path.name for path in sorted(recorded_below(root), key=recency)[-5:]]
    return f"The newest runs there: {', '.join(reversed(names))}." if names else "Nothing was recorded there."
