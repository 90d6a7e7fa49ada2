"""Writing a journal: frames into segments, segments below a size cap, and nothing raised for a disk that fails.

One thread at a time uses a ``Writer``. It holds no lock, so a process may fork while it writes.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_rl.journal import frame
from otel_rl.journal.acknowledged import first_unsent
from otel_rl.journal.directory import make_directory
from otel_rl.journal.frame import Signal
from otel_rl.journal.held import HeldFiles
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.otlp.wire import Request
from otel_rl.journal.pending import FIRST_TO_GO, Pending, Waiting
from otel_rl.journal.segment import Segment

__all__ = ["Writer", "WriterIdentity", "WriterStats"]

MIB: Final = 1 << 20


@dataclass(frozen=True)
class WriterStats:
    """What a writer did so far."""

    frames: int
    """Frames written, the writer's own not counted."""
    records: Mapping[Signal, int]
    """Records written, removed segments included."""
    bytes: int
    """Bytes written, removed segments included."""
    pending_bytes: int
    dropped: Mapping[tuple[Signal, str], int]
    """Records given up by signal and reason.

    ``journal_full`` (size cap), ``pending_full`` (nothing could be written for too long), ``too_large`` (a payload
    above 64 MiB, or above the limit of file sizes), ``unwritten`` (still pending at the close), ``closed`` (by a closed
    writer or in a forked child).
    """
    failure: str | None
    """Why nothing can be written at present."""
    directory: Path


class Writer:
    """The journal of this process in one run directory."""

    def __init__(
        self,
        directory: Path,
        identity: WriterIdentity,
        max_bytes: int,
        segment_bytes: int = 16 * MIB,
        pending_bytes: int = 64 * MIB,
    ) -> None:
        """Prepare a journal; nothing is made on disk before the first frame.

        Args:
            directory: of the run; made with its missing parents when needed, for the owner only.
            identity: of this process.
            max_bytes: cap of all segments of this journal together, and of what is held beside them.
            segment_bytes: a segment that reaches it is closed; at most an eighth of the cap.
            pending_bytes: cap of what is kept in memory while the disk fails.
        """
        self.identity = identity
        self._directory = directory
        self._max_bytes = max_bytes
        self._segment_bytes = min(segment_bytes, max_bytes // 8)
        self._owner = os.getpid()
        self._closed = False
        self._header = frame.pack(frame.WRITER, identity.to_json(), 1, identity.created_ns, identity.created_ns)
        self._current: dict[Signal, Segment] = {}
        self._old: list[Segment] = []
        self._numbers: Counter[Signal] = Counter()
        self._pending = Pending(pending_bytes)
        self._held = HeldFiles(identity.writer, self._header, max_bytes // 8)
        self._frames = 0
        self._records: Counter[Signal] = Counter()
        self._bytes = 0
        self._dropped: Counter[tuple[Signal, str]] = Counter()
        self._failure: str | None = None
        self._left: Path | None = None
        """The directory from which segments are still to be moved."""

    @property
    def _is_over(self) -> bool:
        """Whether nothing may be written any more: it was closed, or is a forked child's copy."""
        return self._closed or os.getpid() != self._owner

    @property
    def stats(self) -> WriterStats:
        """What was written, what waits and what was given up."""
        return WriterStats(
            self._frames,
            dict(self._records),
            self._bytes,
            self._pending.bytes,
            dict(self._dropped),
            self._failure,
            self._directory,
        )

    def append(self, signal: Signal, payload: bytes, count: int, first_ns: int, last_ns: int) -> None:
        """Append one OTLP request as a frame; what cannot be written now waits in memory for the next call.

        Args:
            signal: what the request holds.
            payload: the request.
            count: records in it.
            first_ns: earliest time in it, ns since 1970.
            last_ns: latest time in it.
        """
        if self._is_over:
            self._dropped[signal, "closed"] += count
            return
        if len(payload) > frame.MAX_PAYLOAD_BYTES:
            self._dropped[signal, "too_large"] += count
            return
        data = frame.pack(frame.TYPES[signal], payload, count, first_ns, last_ns)
        self._pending.add(Waiting(signal, data, count))
        self.retry()
        for waiting in self._pending.shrink():
            self._dropped[waiting.signal, "pending_full"] += waiting.records

    def retry(self) -> None:
        """Write what waits, in order, until the disk refuses; take along what could not be moved before."""
        if self._is_over:
            return
        self._failure = self._write_pending() or self._finish_move() or self._held.failure

    def held_bytes(self, signal: Signal) -> int:
        """Say how much is held of a signal; 0 where there is nothing to go on with, so that all has to be given."""
        return self._held.size(signal)

    def hold(self, signal: Signal, requests: Iterable[Request], *, is_all: bool) -> bool:
        """Put records that cannot be journaled yet into a file of their own, all or nothing; say if they are there.

        They count nowhere: they will be appended like all others, from memory.

        Args:
            signal: of the requests.
            requests: as they would be journaled now.
            is_all: they are all that waits, and take the place of what is held; else they are appended to it.
        """
        if self._is_over:
            return False
        fitting = [request for request in requests if len(request.payload) <= frame.MAX_PAYLOAD_BYTES]
        data = b"".join(
            frame.pack(frame.TYPES[signal], one.payload, one.count, one.first_ns, one.last_ns) for one in fitting
        )
        size = (
            sum(segment.size for segment in self._segments()) + self._held.total_bytes + len(data) + len(self._header)
        )
        if size > self._max_bytes:
            return False
        return self._held.write(self._directory, signal, data, sum(one.count for one in fitting), is_all=is_all)

    def release(self, *signals: Signal) -> None:
        """Remove what is held of signals whose records were appended, unless some of those still wait for the disk."""
        if self._is_over:
            return
        self._held.remove([signal for signal in signals if not self._pending.has(signal)])

    def heartbeat(self) -> None:
        """Touch the current segments, so that readers who cannot look this process up see that it lives."""
        if self._is_over:
            return
        try:
            self._held.touch()
        except OSError as error:
            self._failure = f"cannot touch what is held in {self._directory}: {error.strerror or error}"
        for signal, segment in list(self._current.items()):
            try:
                segment.touch()
            except FileNotFoundError:  # removed by somebody: what is written from now on must not go there
                segment.abandon()
                del self._current[signal]
            except OSError as error:
                self._failure = f"cannot touch {segment.path}: {error.strerror or error}"

    def move(self, directory: Path) -> None:
        """Go on in another directory of the same file system and take the segments along.

        What cannot be moved stays where it is, is told by ``stats.failure`` and tried again with ``retry``.
        """
        if self._is_over:
            return
        self._left = self._left or self._directory
        self._directory = directory
        self._failure = self._finish_move()

    def redirect(self, directory: Path) -> None:
        """Go on in another directory, perhaps on another file system; what is written already stays where it is."""
        for signal in list(self._current):
            self._retire(signal)
        self._directory, self._left = directory, None

    def close(self) -> None:
        """Write what waits and close the files; what still cannot be written is counted and gone."""
        if self._is_over:
            return
        self.retry()
        self._closed = True
        for waiting in self._pending.clear():
            self._dropped[waiting.signal, "unwritten"] += waiting.records
        for segment in self._current.values():
            self._end(segment)
            segment.close()
        self._current.clear()
        self._held.close()

    def close_in_child(self) -> None:
        """Close what a fork inherited and write nothing: files and pending frames are the parent's."""
        self._closed = True
        self._pending.clear()
        for segment in self._current.values():
            segment.abandon()
        self._current.clear()
        self._held.close()

    def _end(self, segment: Segment) -> None:
        """Mark a segment as the last one of a closed journal, where that fits below the cap and onto the disk.

        A sidecar sends its own journal until it ends, so it writes nothing after its last look.
        """
        size = sum(one.size for one in self._segments()) + self._held.total_bytes + len(frame.END)
        if segment.frames and size <= self._max_bytes and not self.identity.is_sidecar:
            with suppress(OSError):  # the journal then counts as closed once its heartbeat has run out
                segment.append(frame.END, 0)
                self._bytes += len(frame.END)

    def _write_pending(self) -> str | None:
        """Write what waits; say why it could not all be written."""
        while (waiting := self._pending.first()) is not None:
            try:
                self._write(waiting)
            except OSError as error:
                return f"cannot write the journal in {self._directory}: {error.strerror or error}"
            self._pending.remove(waiting)
        return None

    def _finish_move(self) -> str | None:
        """Move the segments that are not in the directory yet; say why they could not all be moved."""
        left = self._left
        if left is None:
            return None
        try:
            for segment in [*self._held.files, *self._segments()]:
                if segment.path.parent == left:
                    make_directory(self._directory)
                    segment.move(self._directory)
        except OSError as error:
            return f"cannot move the journal from {left} to {self._directory}: {error.strerror or error}"
        self._left = None
        try:
            left.rmdir()
        except OSError:
            return None  # never made, or other journals are still in it
        return None

    def _segments(self) -> Iterable[Segment]:
        return [*self._old, *self._current.values()]

    def _write(self, item: Waiting) -> None:
        """Write one frame below the cap, or count it as given up where the cap is smaller than the frame."""
        size = len(item.frame)
        if not self._make_room(size + len(self._header)):
            self._dropped[item.signal, "journal_full"] += item.records
            return
        segment = self._segment(item.signal, size)
        is_new = not segment.frames
        try:
            segment.append(item.frame, item.records)
        except OSError as error:
            if segment.descriptor >= 0:
                raise
            self._retire(item.signal)
            if is_new and error.errno == errno.EFBIG:  # it fits no file at all: the others must not wait behind it
                self._dropped[item.signal, "too_large"] += item.records
                return
            if is_new:
                raise
            self._write(item)  # the file failed, a new one may do: the limit of file sizes, a stale NFS handle
            return
        self._frames += 1
        self._records[item.signal] += item.records
        self._bytes += size

    def _segment(self, signal: Signal, size: int) -> Segment:
        """Find the segment to append to; begin one where there is none or it would become too large."""
        segment = self._current.get(signal)
        if segment is not None and segment.frames and segment.size + size > self._segment_bytes:
            self._retire(signal)
            segment = None
        if segment is None:
            make_directory(self._directory)
            number = self._numbers[signal]
            path = self._directory / f"{self.identity.writer}.{signal}.{number:06d}.otlp"
            try:
                segment = Segment.create(signal, number, path, self._header)
            except FileExistsError:  # left behind by a failure; the next call takes the next number
                self._numbers[signal] += 1
                raise
            self._numbers[signal] += 1
            self._current[signal] = segment
            self._bytes += len(self._header)
        return segment

    def _retire(self, signal: Signal) -> None:
        segment = self._current.pop(signal)
        segment.close()
        if segment.frames:
            self._old.append(segment)

    def _make_room(self, size: int) -> bool:
        """Remove segments until ``size`` bytes fit below the cap: closed ones first, the oldest first.

        What is held goes before them: it is in memory, too.
        """
        if sum(segment.size for segment in self._segments()) + self._held.total_bytes + size > self._max_bytes:
            self._held.give_up()
        while sum(segment.size for segment in self._segments()) + size > self._max_bytes:
            if not (self._remove_one() or self._retire_one()):
                return False
        return True

    def _remove_one(self) -> bool:
        """Remove a closed segment: one that has been sent, which loses nothing, else the oldest spans."""
        unsent = first_unsent(self._directory, self.identity.writer)
        sent = [segment for segment in self._old if segment.number < unsent.get(segment.signal, 0)]
        if any(map(self._unlink, sent)):
            return True
        for signal in FIRST_TO_GO:
            for segment in [segment for segment in self._old if segment.signal == signal]:
                if self._unlink(segment):
                    self._dropped[signal, "journal_full"] += segment.records
                    return True
        return False

    def _unlink(self, segment: Segment) -> bool:
        try:
            segment.path.unlink(missing_ok=True)
        except OSError as error:
            self._failure = f"cannot remove {segment.path}: {error.strerror or error}"
            return False
        self._old.remove(segment)
        return True

    def _retire_one(self) -> bool:
        for signal in FIRST_TO_GO:
            if signal in self._current:
                self._retire(signal)
                return True
        return False
