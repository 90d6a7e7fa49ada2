"""What is held: records that cannot be journaled yet, in a file of their own for each signal.

Such a file lies beside the writer's segments, has the form of one, and goes once its records are in the journal. Where
the writer was killed before, it is all that there is of them: a reader takes it for a part of the journal then.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from otel_rl.journal.directory import make_directory
from otel_rl.journal.frame import Signal
from otel_rl.journal.segment import Segment

NAME: Final = re.compile(r"(.+)\.(traces|metrics|logs)\.held\.otlp")
"""The name of such a file: writer, signal."""
MAX_BYTES: Final = 64 << 20
"""A file of what is held becomes no larger; what is above it is in memory alone."""


class HeldFiles:
    """Those of one writer."""

    def __init__(self, writer: str, header: bytes, max_bytes: int) -> None:
        """Begin without any.

        Args:
            writer: its name.
            header: the writer's frame.
            max_bytes: cap of one file, at most ``MAX_BYTES``.
        """
        self._writer = writer
        self._header = header
        self._max_bytes = min(max_bytes, MAX_BYTES)
        self._files: dict[Signal, Segment] = {}
        self._failures: dict[Signal, str] = {}
        self._is_over = False

    @property
    def failure(self) -> str | None:
        """Why something cannot be held at present."""
        return next(iter(self._failures.values()), None)

    @property
    def files(self) -> list[Segment]:
        """Those that are there."""
        return [*self._files.values()]

    @property
    def total_bytes(self) -> int:
        """Their size together."""
        return sum(file.size for file in self._files.values())

    def size(self, signal: Signal) -> int:
        """Bytes that are held of a signal; 0 where there is no file to go on with."""
        file = self._files.get(signal)
        return file.size if file is not None and file.descriptor >= 0 else 0

    def write(self, directory: Path, signal: Signal, frames: bytes, records: int, *, is_all: bool) -> bool:
        """Append frames, all or nothing; say whether they are on disk.

        Args:
            directory: of the run.
            signal: of the frames.
            frames: whole ones.
            records: in them.
            is_all: in place of what the file holds, if it is there.
        """
        size = len(frames) + (len(self._header) if is_all else self.size(signal))
        if self._is_over or size > self._max_bytes:
            return False
        try:
            if is_all:
                self._replace(directory, signal, frames, records)
            else:
                self._files[signal].append(frames, records)
        except OSError as error:
            self._failures[signal] = f"cannot hold {signal} in {directory}: {error.strerror or error}"
            return False
        self._failures.pop(signal, None)
        return True

    def remove(self, signals: Iterable[Signal]) -> None:
        """Remove files: their records are in the journal, or somewhere else for sure."""
        for signal in signals:
            self._failures.pop(signal, None)
            file = self._files.pop(signal, None)
            if file is not None:
                _remove(file)

    def give_up(self) -> None:
        """Make room for the journal: from now on what waits is in memory alone."""
        self.remove([*self._files])
        self._is_over = True

    def touch(self) -> None:
        """Show that the writer lives; a file that somebody removed is begun anew by the next that is held.

        Raises:
            OSError: a file is not ours to touch.
        """
        for signal, file in list(self._files.items()):
            try:
                file.touch()
            except FileNotFoundError:
                file.abandon()
                del self._files[signal]

    def close(self) -> None:
        """Close the descriptors; the files stay."""
        for file in self._files.values():
            file.abandon()
        self._files.clear()

    def _replace(self, directory: Path, signal: Signal, frames: bytes, records: int) -> None:
        """Make the file, or another in its place; at every moment one of them is there as a whole."""
        make_directory(directory)
        path = directory / f"{self._writer}.{signal}.held.otlp"
        new = path.with_name(f"{path.name}.new")
        new.unlink(missing_ok=True)
        file = Segment.create(signal, 0, new, self._header)
        try:
            file.append(frames, records)
            os.replace(new, path)
        except OSError:
            _remove(file)
            raise
        file.path = path
        before = self._files.get(signal)
        self._files[signal] = file
        if before is not None and before.path == path:
            before.abandon()
        elif before is not None:
            _remove(before)


def _remove(file: Segment) -> None:
    file.abandon()
    with suppress(OSError):  # a reader passes over it
        file.path.unlink()
