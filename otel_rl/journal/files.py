"""The files of a run: which segments there are, who wrote them, and what is damaged in them."""

from __future__ import annotations

import os
import re
import stat
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_rl.journal import held, views
from otel_rl.journal.file_time import silent_s
from otel_rl.journal.frame import END, SIGNALS, WRITER, Damage, Frame, Signal, scan
from otel_rl.journal.identity import WriterIdentity
from otel_rl.records import Attributes

SUFFIX: Final = ".otlp"
NAME: Final = re.compile(r"(.+)\.(traces|metrics|logs)\.(\d+)\.otlp")
"""The name of a segment: writer, signal, number."""
MAX_BYTES: Final = 1 << 30
"""A larger file is not read: a segment ends at 16 MiB, and a sparse file of any size is quickly made."""
_FIRST_BYTES: Final = 1 << 16
"""The writer's frame is shorter than that."""


@dataclass(frozen=True)
class Segment:
    """A file of the run, or the part of a concatenated file that one writer wrote."""

    path: Path
    signal: str | None
    """What it holds; None where its name does not say."""
    number: int
    start: int = 0
    end: int | None = None
    is_held: bool = False
    """It is no segment: its records wait to be journaled (``journal/held.py``)."""

    def items(self) -> Iterator[Frame | Damage]:
        """Read it as it is now: whole frames, and what is damaged. A file that cannot be read is damage as a whole."""
        try:
            with open(self.path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size > MAX_BYTES:
                    yield Damage(0, size, "too large", str(self.path))
                    return
                file.seek(self.start)
                data = file.read((size if self.end is None else self.end) - self.start)
        except FileNotFoundError:
            return  # its writer removed or moved it after the directory was listed
        except OSError:
            yield Damage(0, self.size, "unreadable", str(self.path))
            return
        for item in scan(data):
            moved = replace(item, offset=item.offset + self.start)
            yield replace(moved, path=str(self.path)) if isinstance(moved, Damage) else moved

    @property
    def size(self) -> int:
        """Its size now; 0 where that is not to be had."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    @property
    def is_closed(self) -> bool:
        """Whether its writer closed the journal at its end."""
        return ends_closed(self.path, self.end)


@dataclass
class _Survey:
    """What one pass over all frames of a journal shows."""

    last_ns: int = 0
    records: dict[Signal, int] = field(default_factory=lambda: {"traces": 0, "metrics": 0, "logs": 0})
    damage: list[Damage] = field(default_factory=list)


class Journal:
    """All segments of one writer."""

    def __init__(self, identity: WriterIdentity, segments: list[Segment]) -> None:
        """Put the segments into the order in which they were written, and what is held behind them."""
        self.identity = identity
        self.segments = sorted(segments, key=lambda one: (one.is_held, one.number, one.path, one.start))
        self.with_held = False
        """Whether what its writer holds is read while that lives, too: it will be journaled otherwise."""
        self._undecodable: dict[tuple[Path, int], Damage] = {}
        self._resources: dict[bytes, Attributes] = {}
        self._surveyed: _Survey | None = None

    def __repr__(self) -> str:
        return f"Journal({self.identity.writer!r})"

    def alive(self) -> bool:
        """Say whether the process that wrote it lives."""
        return self.identity.is_alive(self._silent_s, lambda: any(one.is_closed for one in self._newest.values()))

    @property
    def last_ns(self) -> int:
        """The latest time of any record, ns since 1970; 0 without records. The first call goes through all files."""
        return self._survey().last_ns

    @property
    def records(self) -> dict[Signal, int]:
        """Records by signal, as the frames' headers say."""
        return self._survey().records

    @property
    def damage(self) -> list[Damage]:
        """Everything that could not be read, including requests that turned out undecodable until now.

        The incomplete end of a segment that a living process writes is no damage.
        """
        return [*self._survey().damage, *self._undecodable.values()]

    def frames(self, signal: Signal) -> Iterator[tuple[Segment, Frame]]:
        """Read the whole frames of a signal in the order in which they were written."""
        for segment in self.segments:
            if segment.signal in (signal, None) and self._is_read(segment):
                for item in segment.items():
                    if isinstance(item, Frame) and SIGNALS.get(item.type) == signal:
                        yield segment, item

    @property
    def spans_known_from(self) -> int:
        """The time from which on every finished span is here: later than 0 once the size cap removed older segments."""
        traces = [segment for segment in self.segments if segment.signal == "traces"]
        if not traces or traces[0].number == 0:
            return 0
        return next((frame.last_ns for _, frame in self.frames("traces")), 0)

    def resource(self, message: Resource) -> Attributes:
        """Decode a resource; the same object for the same resource."""
        key = message.SerializeToString()
        known = self._resources.get(key)
        if known is None:
            known = self._resources[key] = MappingProxyType(views.decode(message.attributes, None))
        return known

    def undecodable(self, segment: Segment, frame: Frame) -> None:
        """Note a frame whose checksum is right and whose content is no OTLP request."""
        damage = Damage(frame.offset, frame.end - frame.offset, "content", str(segment.path))
        self._undecodable[segment.path, frame.offset] = damage

    def _silent_s(self) -> float:
        silent = [inf]
        for segment in self.segments:
            with suppress(OSError):  # its writer removed it
                silent.append(silent_s(segment.path))
        return min(silent)

    @property
    def _newest(self) -> dict[str | None, Segment]:
        """The last segment of each signal."""
        return {segment.signal: segment for segment in self.segments if not segment.is_held}

    def _is_read(self, segment: Segment) -> bool:
        """Whether a file counts: what is held does once its writer is dead, and had journaled none of it.

        What a living writer holds will be in the journal, with what is known of the process by then.
        """
        if not segment.is_held:
            return True
        return (self.with_held or not self.alive()) and not self._has_own(segment.signal)

    def _has_own(self, signal: str | None) -> bool:
        """Whether otel_rl's own records of a signal are in the segments; those of other libraries never wait."""
        for segment in self.segments:
            if segment.signal == signal and not segment.is_held and any(map(is_own, segment.items())):
                return True
        return False

    def _survey(self) -> _Survey:
        if self._surveyed is not None:
            return self._surveyed
        survey = self._surveyed = _Survey()
        lives = self.alive()  # asked before: meanwhile its writer may finish a frame, and end
        newest = self._newest
        for segment in filter(self._is_read, self.segments):
            item: Frame | Damage | None = None
            for item in segment.items():
                if isinstance(item, Damage):
                    survey.damage.append(item)
                elif item.type in SIGNALS:
                    survey.last_ns = max(survey.last_ns, item.last_ns)
                    survey.records[SIGNALS[item.type]] += item.count
            is_cut = isinstance(item, Damage) and item.reason not in ("unreadable", "too large", "hopeless")
            if is_cut and newest.get(segment.signal) is segment and lives:
                survey.damage.pop()  # its writer has not finished the frame yet
        return survey


def ends_closed(path: Path, end: int | None = None) -> bool:
    """Return whether a file, or its part up to ``end``, ends with the mark of a closed journal.

    Cost: 15 us.
    """
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size if end is None else end
            file.seek(max(size - len(END), 0))
            return file.read(len(END)) == END
    except OSError:
        return False


def find_journals(path: Path, elsewhere: Path | None = None) -> list[Journal]:
    """Find the journals of a run directory, or those in one file of concatenated segments.

    Args:
        path: of the directory or the file.
        elsewhere: directory in which their writers may have gone on.

    Raises:
        OSError: the directory cannot be listed.
    """
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    with suppress(OSError):  # most often it is not there
        files += sorted(elsewhere.iterdir()) if elsewhere is not None else []
    named: dict[str, list[Segment]] = defaultdict(list)
    identities: dict[str, WriterIdentity] = {}
    for file in files:
        if not _is_segment(file):
            continue
        for segment, identity in _segments(file):
            writer = identity.writer
            if file.parent == elsewhere and writer not in named:
                continue  # of another run of the name
            named[writer].append(segment)
            if identity.created_ns or writer not in identities:
                identities[writer] = identity
    return [Journal(identities[writer], segments) for writer, segments in named.items()]


def _is_segment(file: Path) -> bool:
    try:
        return file.name.endswith(SUFFIX) and stat.S_ISREG(file.stat().st_mode)
    except OSError:
        return False


def _segments(file: Path) -> Iterator[tuple[Segment, WriterIdentity]]:
    """Say who wrote a file; one that is named otherwise is taken apart at its writers' frames."""
    match, is_held = NAME.fullmatch(file.name), held.NAME.fullmatch(file.name)
    if match is not None:
        writer, signal, number = match.groups()
        segment = Segment(file, signal, int(number))
    elif is_held is not None:
        writer, signal = is_held.groups()
        segment = Segment(file, signal, 0, is_held=True)
    else:
        yield from _parts(file)
        return
    first = next(replace(segment, end=_FIRST_BYTES).items(), None)
    yield segment, _identity(first) or WriterIdentity(writer)


def _parts(file: Path) -> Iterator[tuple[Segment, WriterIdentity]]:
    start, number, writer = 0, 0, WriterIdentity(file.name.removesuffix(SUFFIX))
    for item in Segment(file, None, 0).items():
        identity = _identity(item)
        if identity is None:
            continue
        if isinstance(item, Frame) and item.offset > start:
            yield Segment(file, None, number, start, item.offset), writer
            number += 1
            start = item.offset
        writer = identity
    yield Segment(file, None, number, start), writer


def _identity(item: Frame | Damage | None) -> WriterIdentity | None:
    is_writer = isinstance(item, Frame) and item.type == WRITER
    return WriterIdentity.from_json(item.payload) if is_writer and isinstance(item, Frame) else None


def is_own(item: Frame | Damage) -> bool:
    """Say whether a frame holds records of otel_rl itself, and not those of another library."""
    signal = SIGNALS.get(item.type) if isinstance(item, Frame) else None
    try:
        return signal is not None and isinstance(item, Frame) and views.is_own(item.payload, signal)
    except DecodeError:
        return False
