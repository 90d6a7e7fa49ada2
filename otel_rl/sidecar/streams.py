"""Follow a journal while it is written: whole frames from a position on, and the damage between them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, cast

from otel_rl.journal.files import NAME, SPOOL
from otel_rl.journal.frame import HEADER_BYTES, MAX_PAYLOAD_BYTES, WRITER, Damage, Frame, Signal, scan
from otel_rl.journal.identity import WriterIdentity

CHUNK: Final = 4 << 20
LARGEST: Final = HEADER_BYTES + MAX_PAYLOAD_BYTES
"""Size of the largest frame."""
FIRST_BYTES: Final = 1 << 16
"""The writer's frame is shorter."""


class Position(NamedTuple):
    """A position in the stream of one writer's frames of one signal: everything before it is done."""

    segment: int = 0
    offset: int = 0


class Entry(NamedTuple):
    """A frame of the stream, or bytes that are none."""

    item: Frame | Damage
    end: Position


class JournalStream:
    """The segments that one writer wrote of one signal."""

    def __init__(self, writer: str, signal: Signal) -> None:
        self.writer = writer
        self.signal = signal
        self.files: dict[int, Path] = {}
        """Segments that exist, by number; replaced as a whole when the directory was listed again."""
        self.spool: Path | None = None
        """The records that its writer has not journaled yet."""
        self._sizes: dict[int, int] = {}
        """Sizes of the segments that are not written any more, so that ten thousand of them are not read each time."""

    @property
    def newest(self) -> Path | None:
        """Return the file that is written, or was last."""
        files = self.files
        return files[max(files)] if files else self.spool

    def unread(self, position: Position) -> int:
        """Return the bytes after a position."""
        files = self.files
        last = max(files, default=0)
        total = sum(self._size(files, number, last) for number in files if number >= position.segment)
        return max(total - (position.offset if position.segment in files else 0), 0)

    def entries(self, position: Position, *, finished: bool) -> Iterator[Entry]:
        """Read on from a position, as far as there are whole frames; once ``finished``, a torn end is damage."""
        files = self.files
        last = max(files, default=0)
        for number in sorted(number for number in files if number >= position.segment):
            offset = position.offset if number == position.segment else 0
            yield from _read(files[number], number, offset, grows=number == last and not finished)

    def end(self, position: Position) -> Position:
        """Return the end of the last whole frame that is there now. Cost: reads the newest segment."""
        last = max(self.files, default=0)
        end = max(position, Position(last, 0))
        for entry in self.entries(end, finished=False):
            end = entry.end
        return end

    def adopt(self) -> None:
        """Make the spool of a dead writer its next segment.

        A writer that lives after all journals the same records again: its spans are then in two traces.

        Raises:
            OSError: the file cannot be renamed.
        """
        if self.spool is not None:
            number = max(self.files, default=-1) + 1
            self.spool.rename(self.spool.with_name(f"{self.writer}.{self.signal}.{number:06d}.otlp"))

    def _size(self, files: dict[int, Path], number: int, last: int) -> int:
        if number < last and number in self._sizes:
            return self._sizes[number]
        try:
            size = files[number].stat().st_size
        except OSError:
            return 0
        if number < last:
            self._sizes[number] = size
        return size


def find_streams(directory: Path) -> dict[tuple[str, Signal], JournalStream]:
    """Find the streams of a run directory as it is now."""
    streams: dict[tuple[str, Signal], JournalStream] = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            named = NAME.fullmatch(entry.name)
            if named is None or not entry.is_file(follow_symlinks=False):
                continue
            key = named[1], cast("Signal", named[2])
            stream = streams.get(key)
            if stream is None:
                stream = streams[key] = JournalStream(*key)
            if named[3] == SPOOL:
                stream.spool = directory / entry.name
            else:
                stream.files[int(named[3])] = directory / entry.name
    return streams


def identity_of(stream: JournalStream) -> WriterIdentity | None:
    """Read who writes a stream, from the first frame of any of its files."""
    for path in [*(path for _, path in sorted(stream.files.items())), *filter(None, [stream.spool])]:
        try:
            with open(path, "rb") as file:
                item = next(scan(file.read(FIRST_BYTES)), None)
        except OSError:
            continue
        if isinstance(item, Frame) and item.type == WRITER:
            return WriterIdentity.from_json(item.payload)
    return None


def _read(path: Path, number: int, offset: int, *, grows: bool) -> Iterator[Entry]:
    """Read a segment in chunks; what may be the begin of a frame is left for a larger chunk, or the next call."""
    with suppress(FileNotFoundError), open(path, "rb") as file:  # it may go at the size cap
        size = CHUNK
        while True:
            file.seek(offset)
            data = file.read(size)
            has_more = len(data) == size
            done = cut = 0
            for item in scan(data):
                cut = item.end if isinstance(item, Frame) else item.offset + item.length
                is_open = isinstance(item, Damage) and (item.reason == "torn" or cut == len(data))
                if is_open and (has_more or grows):
                    break
                done = cut
                yield Entry(item, Position(number, offset + done))
            if not done and has_more and size == LARGEST:  # no frame begins here, but one may begin at the very end
                done = min(cut, size - HEADER_BYTES)
                yield Entry(Damage(0, done, "garbage"), Position(number, offset + done))
            if not done and not has_more:
                return
            offset, size = offset + done, CHUNK if done else LARGEST
