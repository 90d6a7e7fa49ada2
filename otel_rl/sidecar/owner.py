"""One sidecar for each node and run: who it is stands in a file, and whether it lives is looked up, never locked.

One that sends nothing and only watches for stalls gives way to one that sends.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Final

from otel_rl.journal.filesystem import silent_s
from otel_rl.journal.identity import SIDECAR, WriterIdentity
from otel_rl.journal.own_file import OwnFile

ROLE: Final = SIDECAR
SENDS: Final = "sends"
"""What the file says besides who it is: whether it sends, or only watches."""
FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EROFS))
"""Errors of a disk that is full or read-only."""


class Owner:
    """The claim of this process to ship the journals of one node."""

    def __init__(self, path: Path, identity: WriterIdentity, *, is_written: bool = True) -> None:
        self.path = path
        self.identity = identity
        self._is_written = is_written
        """Whether it is in the file; else it holds until another one's is."""

    def touch(self) -> bool:
        """Show that we live to processes that cannot look us up; False if another took over or the file is gone."""
        try:
            if not self._is_written:
                return _living(self.path, sends=True) is None
            is_ours = WriterIdentity.from_json(self.path.read_bytes()) == self.identity
        except FileNotFoundError:
            is_ours = False
        except OSError:  # a network file system in trouble says nothing about who owns it
            is_ours = True
        if is_ours:
            with suppress(OSError):  # the disk is full or read-only
                os.utime(self.path)
        return is_ours

    def release(self) -> None:
        """Remove the claim."""
        with suppress(OSError):
            if WriterIdentity.from_json(self.path.read_bytes()) == self.identity:
                self.path.unlink()


def path_of(directory: Path, boot_id: str) -> Path:
    """Return the file in which the sidecar of a node says who it is."""
    return directory / f"{ROLE}-{boot_id or 'node'}.json"


def living(directory: Path, boot_id: str, *, sends: bool = False) -> WriterIdentity | None:
    """Return the living sidecar of a node, or only one that sends; None also if the file system is in trouble."""
    try:
        return _living(path_of(directory, boot_id), sends=sends)
    except OSError:
        return None


def claim(directory: Path, boot_id: str, identity: WriterIdentity, *, sends: bool = True) -> Owner | None:
    """Become the sidecar of a node; None if there is a living one, unless that only watches and we send.

    The lock is only for reading and writing the file; the owner is who lives.

    Raises:
        OSError: the directory cannot be written, or does not say whose it is.
    """
    path = path_of(directory, boot_id)
    with _alone(path.with_suffix(".lock")):
        if _living(path, sends=sends) is not None:
            return None
        new = path.with_suffix(f".{identity.pid}.new")
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(json.dumps({**asdict(identity), SENDS: sends}).encode())
            os.replace(new, path)
        except OSError:
            with suppress(OSError):
                new.unlink()
            raise
    return Owner(path, identity)


def claim_by_hand(directory: Path, boot_id: str, identity: WriterIdentity, say: Callable[[str], None]) -> Owner | None:
    """Claim as a person's command does: also on a full or read-only disk, which is said.

    What trainers start would be started again and again there, since it cannot be seen.

    Raises:
        OSError: the directory cannot be written for another reason, or does not say whose it is.
    """
    try:
        return claim(directory, boot_id, identity)
    except OSError as error:
        if error.errno not in FULL:
            raise
        say(f"progress cannot be saved in {directory} ({error.strerror}): what is sent now may be sent again later")
        if living(directory, boot_id, sends=True) is not None:
            return None
        return Owner(path_of(directory, boot_id), identity, is_written=False)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    with OwnFile(path, os.O_RDWR | os.O_CREAT) as file:
        with suppress(OSError):  # a file system without locks: of two, ``touch`` stops one
            fcntl.flock(file.number, fcntl.LOCK_EX)
        yield


def _living(path: Path, *, sends: bool = False) -> WriterIdentity | None:
    try:
        payload = path.read_bytes()
        identity = WriterIdentity.from_json(payload)
        if identity is None or not identity.is_alive(lambda: silent_s(path)):
            return None
        return identity if not sends or json.loads(payload).get(SENDS, True) else None
    except FileNotFoundError:
        return None
