"""The spans of one writer as they come, each once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.journal.columns.decode import decode_spans
from otel_rl.journal.files import Journal
from otel_rl.journal.frame import TYPES, Damage, Frame, scan
from otel_rl.journal.identity import WriterIdentity
from otel_rl.records import Attributes
from otel_rl.runs.spans import integer
from otel_rl.sidecar.streams import FIRST_BYTES, JournalStream, Position

SET_BACK_NS: Final = 60_000_000_000
"""Frames of one cycle may be in any order, but not so far apart."""


class SpanTail:
    """Reads one journal's spans while it is written, and skips damage."""

    def __init__(self, stream: JournalStream, identity: WriterIdentity) -> None:
        """Begin at the first segment of a stream, whose ``files`` the caller keeps up to date."""
        self.stream = stream
        self.identity = identity
        self.is_finished = False
        """Whether its writer is dead: then a torn end is damage."""
        self.known_from_ns = 0
        """Spans that began after it (ns since 1970) are read; frames that end before it are not decoded."""
        self.is_set_back = False
        """Whether the clock was set back: spans that follow are of long before ``known_from_ns``, and are not read."""
        self._newest_ns = 0
        self._journal = Journal(identity, [])
        self._position = Position()
        self._peeked = Position()
        self._is_cut = False
        """Whether frames before the next one are gone."""

    @property
    def unread(self) -> int:
        """Bytes that are still to be read."""
        return self.stream.unread(self._position)

    def peek(self) -> Attributes | None:
        """Return the resource of the first spans that know their attempt; None if there are none yet."""
        for frame in self._first_frames():
            for span in decode_spans([frame.payload]).views(self._journal, ()):
                if v.ATTEMPT_ID in span.resource or integer(span.resource, v.WORLD_SIZE) <= 1:
                    return span.resource
        return None

    def read(self) -> Iterator[bytes]:
        """Return the spans of one frame after the other, encoded, as far as there are whole frames."""
        if not self.unread:
            return
        self._is_cut |= min(self.stream.files, default=0) > self._position.segment  # they went at the size cap
        for entry in self.stream.entries(self._position, finished=self.is_finished):
            self._position, frame = entry.end, entry.item
            if not isinstance(frame, Frame) or frame.type != TYPES["traces"]:
                continue
            self._newest_ns = max(self._newest_ns, frame.last_ns)
            self.is_set_back |= frame.last_ns + SET_BACK_NS < self.known_from_ns <= self._newest_ns
            if self._is_cut:
                self._is_cut, self.known_from_ns = False, max(self.known_from_ns, frame.last_ns)
            if frame.last_ns > self.known_from_ns:
                yield frame.payload

    def skip(self) -> None:
        """Go to the end of what is there now. Cost: reads the newest segment."""
        self._position = self.stream.end(self._position)
        self._is_cut = True

    def _first_frames(self) -> Iterator[Frame]:
        """Return the frames of spans from the begin on; mostly the first is enough, and small."""
        files = self.stream.files
        if self._peeked == Position():
            with suppress(FileNotFoundError, ValueError), open(files[min(files)], "rb") as file:
                items: list[Frame | Damage] = [*scan(file.read(FIRST_BYTES))]
                yield from (item for item in items if isinstance(item, Frame) and item.type == TYPES["traces"])
        for entry in self.stream.entries(self._peeked, finished=False):
            self._peeked = entry.end
            if isinstance(entry.item, Frame) and entry.item.type == TYPES["traces"]:
                yield entry.item
