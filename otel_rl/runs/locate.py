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
"""Where processes write until the name of their run is known."""
BESIDE_S = 60.0
"""Processes touch their journals more often than that while they live."""
HOW_TO_RECORD = "`otel-rl run -- python train.py` records one, `otel-rl demo` shows one"


def find_run(name: str | None, root: Path) -> Path:
    """Find a run by path (a directory, or a file of joined segments), by its name below the root, or the newest one.

    A name without a separator is first a run below the root, then one in the folder for temporary files, then a path.
    It may be the folder's or the one that the user gave, of which the folder's is made.

    Raises:
        JournalNotFound: there is none; the message says where was looked and what to do.
    """
    if name is None:
        return newest_run(root)
    named = [place / name for place in roots(root)]
    called = [place / folder_name(name) for place in roots(root)]
    is_name = os.path.basename(name) == name and name not in (os.curdir, os.pardir)
    candidates = [*named, *called, Path(name)] if is_name else [Path(name), *named, *called]
    for error in (0, errno.EACCES):  # who opens what is not theirs is told so, but what can be opened goes first
        for path in candidates:
            if _error(path) == error:
                return _not_empty(path)
    raise JournalNotFound(
        f"there is no run {name!r}: it is neither a directory nor a run below {root} (OTEL_RL_DIR). {_known(root)}"
    )


def open_whole(path: Path) -> Run:
    """Open a run with what its processes wrote elsewhere when their disk took no more.

    Raises:
        JournalNotFound: there is none, or it cannot be read.
    """
    from otel_rl.process.directories import redirected  # as below

    return open_run(path, redirected(path.absolute()))


def _not_empty(path: Path) -> Path:
    """Give a run back that holds anything; what that is and whether it can be read says who opens it."""
    with suppress(OSError):
        if path.is_dir() and not any(path.iterdir()):
            raise JournalNotFound(
                f"{path} is empty: nothing was recorded there. A process makes its first file half a second after "
                f"`otel_rl.instrument()`; {HOW_TO_RECORD}"
            )
    return path


def newest_run(root: Path) -> Path:
    """Find the run that was written last; where the root cannot be written also among those that went elsewhere.

    Raises:
        JournalNotFound: there is none; the message says what to do.
    """
    places = [root] if _is_writable(root) else roots(root)
    runs = [run for place in places for run in recorded_below(place)]
    if not runs:
        raise JournalNotFound(
            f"nothing was recorded below {root} (OTEL_RL_DIR){_why_not(root)}; {HOW_TO_RECORD}{_elsewhere(root)}"
        )
    return max(runs, key=recency)


def roots(root: Path) -> list[Path]:
    """List where runs are kept: the root, and the folder of this user that takes what cannot be written there."""
    fallback = _fallback()
    return [root] if fallback in (None, root) else [root, fallback]


def is_fallback(run: Path) -> bool:
    """Say whether a run lies where runs go that cannot be written where they belong."""
    return _fallback() in run.absolute().parents


def _fallback() -> Path | None:
    """Give the folder for runs that cannot be written where they belong; None where there cannot be one."""
    from otel_rl.process.directories import fallback_name  # reading needs nothing else of the recorder

    try:
        return fallback_name()
    except OSError:
        return None


def recorded_below(root: Path) -> list[Path]:
    """List the runs below a root as ``runs_below`` does; none where it cannot be read."""
    try:
        return runs_below(root)
    except OSError:
        return []


def runs_below(root: Path) -> list[Path]:
    """List the directories below the root that hold a journal, in order of their names.

    Raises:
        OSError: the root is there and cannot be listed.
    """
    if not root.is_dir():
        return []
    candidates = list(root.iterdir())
    with suppress(OSError):  # there is none, or it is somebody else's, with whom the root is shared
        candidates += (root / PENDING).iterdir()
    return sorted(path for path in candidates if is_run(path))


def recency(run: Path) -> float:
    """Return how new a run is, a larger number for a newer one: by when it was written last.

    A process that waits for its run's name counts as older: the run that it waits beside is meant, and names it.
    """
    return written_at(run) - (BESIDE_S if run.parent.name == PENDING else 0.0)


def written_at(run: Path) -> float:
    """Return when a run's journal was written last, s of the monotonic clock of this host; minus infinity without one.

    Who makes the files stamps them, and may be a file server whose clock is another.
    """
    written = last_written(run)
    try:
        return written - ahead_s(run) if written else -inf
    except OSError:
        return -inf


def last_written(run: Path) -> float:
    """Return when a run's journal was written last by its own clock, seconds since 1970; 0 where it is gone by now."""
    times = []
    for segment in run.glob("*.otlp"):
        try:
            found = segment.stat()
        except OSError:  # the size cap removed it between listing and looking, or it is a link to nowhere
            continue
        if S_ISREG(found.st_mode):
            times.append(found.st_mtime)
    return max(times, default=0.0)


def is_run(path: Path) -> bool:
    """Say whether a directory holds a journal; not where it cannot be read."""
    try:
        return path.is_dir() and any(segment.is_file() for segment in path.glob("*.otlp"))
    except OSError:
        return False


def _error(path: Path) -> int | None:
    """Say why a path cannot be looked at; 0 where it can."""
    try:
        path.stat()
    except OSError as error:
        return error.errno
    return 0


def _why_not(root: Path) -> str:
    try:
        runs_below(root)
    except OSError as error:
        return f", which cannot be read: {error.strerror}"
    return ""


def _is_writable(root: Path) -> bool:
    """Say whether a new run could be kept below a root, which may be made first."""
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
    names = [path.name for path in sorted(recorded_below(root), key=last_written)[-5:]]
    return f"The newest runs there: {', '.join(reversed(names))}." if names else "Nothing was recorded there."
