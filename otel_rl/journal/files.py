"""The files of a run: segments, their writers, and what is damaged in them."""

from __future__ import annotations

import os
import re
import stat
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from math import inf
from operator import itemgetter
from pathlib import Path
from typing import Final

from otel_rl.journal.bookmark import Bookmark
from otel_rl.journal.columns.messages import resource_of
from otel_rl.journal.filesystem import silent_s
from otel_rl.journal.frame import END, LEFT, SIGNALS, WRITER, Damage, Frame, Signal, scan
from otel_rl.journal.identity import WriterIdentity
from otel_rl.records import Attributes

SUFFIX: Final = ".otlp"
SPOOL: Final = "spool"
NAME: Final = re.compile(rf"(.+)\.(traces|metrics|logs)\.(\d+|{SPOOL})\.otlp")
"""The name of a file: writer, signal, number of the segment. The spool has what is in no segment yet."""
BATCH_BYTES: Final = 1 << 21
"""What is decoded at once, in bytes of requests: its spans take five times as much memory."""
_FIRST_BYTES: Final = 1 << 16
"""The writer's frame is shorter than that."""


@dataclass(frozen=True)
class SegmentFile:
    """A segment or a spool as a reader sees it."""

    path: Path
    signal: str
    number: int
    """Number of the segment; -1 for the spool."""

    def items(self, begin: int = 0, size: int = -1) -> Iterator[Frame | Damage]:
        """Read whole frames, and the damage between them; a file that cannot be read is damage as a whole.

        Args:
            begin: where a frame begins.
            size: how much to read; -1 for all.
        """
        try:
            with open(self.path, "rb") as file:
                file.seek(begin)
                data = file.read(size)
        except FileNotFoundError:
            return  # its writer removed or moved it
        except OSError:
            yield Damage(0, self.size, "unreadable", str(self.path))
            return
        for item in scan(data, begin):
            yield replace(item, path=str(self.path)) if isinstance(item, Damage) else item

    @property
    def size(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError:
            return 0


class Journal:
    """All files of one writer."""

    def __init__(self, identity: WriterIdentity, segments: list[SegmentFile]) -> None:
        self.identity = identity
        self.segments = sorted(segments, key=lambda one: (one.number, one.path))
        self._newest = {one.signal: one for one in self.segments if one.number >= 0}
        self.resources: dict[bytes, Attributes] = {}
        """The resources that were decoded, by their messages."""

    def __repr__(self) -> str:
        return f"Journal({self.identity.writer!r})"

    def alive(self) -> bool:
        return self.identity.is_alive(
            self._silent_s, lambda: any(ends_closed(one.path) for one in self._newest.values())
        )

    def is_left(self) -> bool:
        """Return whether somebody moved these files while their writer went on, so that it writes elsewhere."""
        return any(_ends_with(one.path, LEFT) for one in self._newest.values())

    @property
    def last_ns(self) -> int:
        """Return the latest time of any record, ns since 1970; 0 without records.

        The first call reads all files.
        """
        return self.bookmark.last_ns

    @property
    def records(self) -> dict[Signal, int]:
        return self.bookmark.records

    @property
    def damage(self) -> list[Damage]:
        """Return what could not be read, including the requests that turned out undecodable so far.

        The incomplete end of a segment that a living process writes is no damage.
        """
        return self.bookmark.all_damage([one.path for one in self._newest.values()])

    def frames(self, signal: Signal) -> Iterator[tuple[SegmentFile, Frame]]:
        """Read the whole frames of a signal in the order in which they were written."""
        for segment in self.segments:
            if segment.signal == signal:
                for item in segment.items():
                    if isinstance(item, Frame) and SIGNALS.get(item.type) == signal:
                        yield segment, item

    def unread(self, signal: Signal) -> Iterator[tuple[SegmentFile, Frame]]:
        """Read the frames that ``bookmark`` has not come to, and move it on."""
        for segment in self.segments:
            if segment.signal == signal:
                for frame in self.bookmark.frames(segment):
                    if SIGNALS.get(frame.type) == signal:
                        yield segment, frame

    @property
    def spans_known_from(self) -> int:
        """Return the time since which every finished span is here; 0 unless the size cap removed older segments."""
        traces = [segment for segment in self.segments if segment.signal == "traces"]
        if not traces or traces[0].number <= 0:
            return 0
        return next((frame.last_ns for _, frame in self.frames("traces")), 0)

    def batches(self, signal: Signal, *, unread: bool = False) -> Iterator[tuple[SegmentFile, list[Frame]]]:
        """Read as ``frames`` or ``unread`` does, several frames of a segment at once: as many as make 2 MiB."""
        frames = self.unread(signal) if unread else self.frames(signal)
        for segment, items in groupby(frames, itemgetter(0)):
            batch, size = list[Frame](), 0
            for _, frame in items:
                batch.append(frame)
                size += len(frame.payload)
                if size >= BATCH_BYTES:
                    yield segment, batch
                    batch, size = [], 0
            if batch:
                yield segment, batch

    def resource(self, message: bytes) -> Attributes:
        """Decode a Resource; equal ones are the same object."""
        known = self.resources.get(message)
        if known is None:
            known = self.resources[message] = resource_of(message)
        return known

    def undecodable(self, segment: SegmentFile, frame: Frame) -> None:
        """Record as damage a frame whose checksum is right and whose content is no OTLP request."""
        damage = Damage(frame.offset, frame.end - frame.offset, "content", str(segment.path))
        if damage not in self.bookmark.undecodable:
            self.bookmark.undecodable.append(damage)

    def _silent_s(self) -> float:
        silent = [inf]
        for segment in self.segments:
            with suppress(OSError):  # the file is gone
                silent.append(silent_s(segment.path))
        return min(silent)

    @cached_property
    def bookmark(self) -> Bookmark:
        """Return where this reader is in all files. The first call reads them, unless a reader set it."""
        bookmark = Bookmark(is_written=self.alive())  # first: meanwhile the writer may finish a frame and end
        for segment in self.segments:
            for _ in bookmark.frames(segment):
                pass
        return bookmark


def ends_closed(path: Path) -> bool:
    return _ends_with(path, END)


def _ends_with(path: Path, mark: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - len(mark), 0))
            return file.read(len(mark)) == mark
    except OSError:
        return False


def find_journals(path: Path, elsewhere: Path | None = None) -> list[Journal]:
    """Find the journals of a run directory or file, also in a directory in which their writers may have gone on.

    Raises:
        OSError: the directory cannot be listed.
    """
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    with suppress(OSError):  # it is mostly not there
        files += sorted(elsewhere.iterdir()) if elsewhere is not None else []
    named: dict[str, list[SegmentFile]] = defaultdict(list)
    identities: dict[str, WriterIdentity] = {}
    for file in files:
        match = NAME.fullmatch(file.name)
        if match is None or not _is_regular(file):
            continue
        writer, signal, number = match.groups()
        segment = SegmentFile(file, signal, -1 if number == SPOOL else int(number))
        identity = _identity(next(segment.items(size=_FIRST_BYTES), None)) or WriterIdentity(writer)
        if file.parent == elsewhere and identity.writer not in named:
            continue  # another run of the same name
        named[identity.writer].append(segment)
        if identity.created_ns or identity.writer not in identities:
            identities[identity.writer] = identity
    return [Journal(identities[writer], segments) for writer, segments in named.items()]


def _is_regular(file: Path) -> bool:
    try:
        return stat.S_ISREG(file.stat().st_mode)
    except OSError:
        return False


def _identity(item: Frame | Damage | None) -> WriterIdentity | None:
    is_writer = isinstance(item, Frame) and item.type == WRITER
    return WriterIdentity.from_json(item.payload) if is_writer and isinstance(item, Frame) else None
