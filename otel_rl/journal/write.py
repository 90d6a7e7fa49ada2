"""Writing a journal: frames into segments, segments below a size cap, and nothing raised for a disk that fails.

One thread at a time uses a ``Writer``. It holds no lock, so a process may fork while it writes.
"""

from __future__ import annotations

import errno
import os
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_rl.journal import frame
from otel_rl.journal.filesystem import make_directory
from otel_rl.journal.frame import Signal
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.otlp.wire import OtlpRequest
from otel_rl.journal.segment import Segment, first_unsent

__all__ = ["Writer", "WriterIdentity"]

MIB: Final = 1 << 20
DROP_ORDER: Final[tuple[Signal, ...]] = ("traces", "logs", "metrics")
"""Without room, in memory or on disk, the records of these signals are dropped first."""
MOVED: Final = "run_moved"


@dataclass(slots=True, eq=False)
class PendingFrame:
    """A frame on its way to the disk."""

    signal: Signal
    frame: bytes
    records: int


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
            directory: of the run; made when needed, for the owner only.
            identity: of this process.
            max_bytes: cap of all files of this journal together.
            segment_bytes: a segment that reaches it is closed; at most an eighth of the cap.
            pending_bytes: cap of what is kept in memory while the disk fails.
        """
        self.identity = identity
        self.directory = directory
        self._max_bytes = max_bytes
        self._segment_bytes = min(segment_bytes, max_bytes // 8)
        self._max_pending = pending_bytes
        self._owner = os.getpid()
        self._closed = False
        self._header = frame.pack(frame.WRITER, identity.to_json(), 1, identity.created_ns, identity.created_ns)
        self._current: dict[Signal, Segment] = {}
        self._old: list[Segment] = []
        self._spool: dict[Signal, Segment] = {}
        self._numbers: Counter[Signal] = Counter()
        self._pending: deque[PendingFrame] = deque()
        self.pending_bytes = 0
        self.frames = 0
        self.records: Counter[Signal] = Counter()
        """Written records, also of segments that were removed since; ``bytes`` likewise."""
        self.bytes = 0
        self.dropped: Counter[tuple[Signal, str]] = Counter()
        """Dropped records by signal and reason.

        ``journal_full`` (size cap), ``pending_full`` (nothing could be written for too long), ``too_large`` (a payload
        above 64 MiB, or above the limit of file sizes), ``unwritten`` (still pending at the close), ``closed`` (by a
        closed writer or in a forked child), ``run_moved`` (in files that somebody moved or removed).
        """
        self.failure: str | None = None
        self._spool_failure: str | None = None
        self._left: Path | None = None

    @property
    def _is_over(self) -> bool:
        return self._closed or os.getpid() != self._owner

    def append(self, signal: Signal, payload: bytes, count: int, first_ns: int, last_ns: int) -> None:
        """Append one OTLP request as a frame; what cannot be written now waits in memory for the next call."""
        if self._is_over:
            self.dropped[signal, "closed"] += count
            return
        if len(payload) > frame.MAX_PAYLOAD_BYTES:
            self.dropped[signal, "too_large"] += count
            return
        data = frame.pack(frame.TYPES[signal], payload, count, first_ns, last_ns)
        self._pending.append(PendingFrame(signal, data, count))
        self.pending_bytes += len(data)
        self.retry()
        self._shrink_pending()

    def retry(self) -> None:
        """Write what is pending, in order, until the disk refuses; move what could not be moved before."""
        if self._is_over:
            return
        self.failure = self._write_pending() or self._finish_move() or self._spool_failure

    def spool(self, signal: Signal, requests: Sequence[OtlpRequest]) -> bool:
        """Put records that cannot be journaled yet into a file of their own, in place of those of the last call.

        The file lies beside the segments and has their form. Its records are not counted: they will be appended.

        Returns:
            Whether they are on disk; if not, the file holds the records of the last call.
        """
        data = b"".join(
            frame.pack(frame.TYPES[signal], one.payload, one.count, one.first_ns, one.last_ns)
            for one in requests
            if len(one.payload) <= frame.MAX_PAYLOAD_BYTES
        )
        size = len(self._header) + len(data)
        if self._is_over or size > self._max_bytes // 8 or self._size() + size > self._max_bytes:
            return False
        path = self.directory / f"{self.identity.writer}.{signal}.spool.otlp"
        new = path.with_suffix(".new")
        try:
            make_directory(self.directory)
            new.unlink(missing_ok=True)
            file = Segment.create(signal, 0, new, self._header)
            try:
                file.append(data, len(requests))
                os.replace(new, path)
            except OSError:
                file.remove()
                raise
        except OSError as error:
            self._spool_failure = f"cannot write the spool in {self.directory}: {error.strerror or error}"
            return False
        file.abandon()
        file.path = path
        self._spool[signal], self._spool_failure = file, None
        return True

    def unspool(self, signal: Signal) -> None:
        """Remove the spool of a signal whose records were appended, unless some of them are not on disk yet."""
        if signal in self._spool and not self._is_over and all(one.signal != signal for one in self._pending):
            self._spool.pop(signal).remove()

    def heartbeat(self) -> None:
        """Touch the current segments, so that readers who cannot look this process up see that it lives.

        What somebody has moved or removed is no longer ours: nothing more is written into it.
        """
        if self._is_over:
            return
        for signal, segment in list(self._current.items()):
            if not self._touch(segment):
                del self._current[signal]
                if segment.frames:
                    self._mark(segment, frame.LEFT)  # if it was moved: its reader does not take the writer for killed
                self._lose(segment)
        for segment in list(self._old):
            if not self._touch(segment):
                self._old.remove(segment)
                self._lose(segment)
        for signal, spool in list(self._spool.items()):
            if not self._touch(spool):
                del self._spool[signal]
                spool.abandon()

    def _touch(self, segment: Segment) -> bool:
        """Touch a file that is open, and look for one that is not; return whether it is where we made it."""
        try:
            segment.path.stat() if segment in self._old else os.utime(segment.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            self.failure = f"cannot touch {segment.path}: {error.strerror or error}"
        return True

    def _lose(self, segment: Segment) -> None:
        segment.abandon()
        self.dropped[segment.signal, MOVED] += segment.records

    def move(self, directory: Path) -> None:
        """Go on in another directory of the same file system and take the segments along.

        What cannot be moved stays where it is until the next ``retry``; ``failure`` says why.
        """
        if self._is_over:
            return
        self._left = self._left or self.directory
        self.directory = directory
        self.failure = self._finish_move()

    def redirect(self, directory: Path) -> None:
        """Go on in another directory, perhaps of another file system; what was written stays where it is."""
        for signal in list(self._current):
            self._retire(signal)
        self.directory, self._left = directory, None

    def end(self) -> int:
        """Write what is pending, and mark the journal as complete; more may be appended all the same.

        Returns:
            How many records could not be written: they are counted, and lost.
        """
        if self._is_over:
            return 0
        self.retry()
        lost: Counter[tuple[Signal, str]] = Counter()
        for pending in self._pending:
            lost[pending.signal, "unwritten"] += pending.records
        self.dropped.update(lost)
        self._clear_pending()
        for signal, segment in list(self._current.items()):
            if segment.frames:
                self._mark(segment)
            else:
                self._retire(signal)
        return lost.total()

    def close(self) -> None:
        """End the journal, and close the files."""
        if self._is_over:
            return
        self.end()
        self._closed = True
        for segment in self._current.values():
            segment.close()
        self._current.clear()

    def close_in_child(self) -> None:
        """Close what a fork inherited and write nothing: all of it is the parent's."""
        self._closed = True
        self._clear_pending()
        for segment in self._current.values():
            segment.abandon()
        self._current.clear()

    def _mark(self, segment: Segment, mark: bytes = frame.END) -> None:
        """Mark a segment as the last one of a complete journal, if the mark fits below the cap and onto the disk.

        A sidecar sends its own journal until it ends, so it leaves the mark out.
        """
        is_marked = segment.marked_at == segment.size
        if not is_marked and self._size() + len(mark) <= self._max_bytes and not self.identity.is_sidecar:
            with suppress(OSError):  # the journal then counts as closed once its heartbeat has run out
                segment.append(mark, 0)
                segment.marked_at = segment.size
                self.bytes += len(mark)

    def _write_pending(self) -> str | None:
        while self._pending:
            pending = self._pending[0]
            try:
                self._write(pending)
            except OSError as error:
                return f"cannot write the journal in {self.directory}: {error.strerror or error}"
            self._remove_pending(pending)
        return None

    def _shrink_pending(self) -> None:
        for signal in DROP_ORDER:
            for pending in [one for one in self._pending if one.signal == signal]:
                if self.pending_bytes <= self._max_pending:
                    return
                self._remove_pending(pending)
                self.dropped[signal, "pending_full"] += pending.records

    def _remove_pending(self, pending: PendingFrame) -> None:
        self._pending.remove(pending)
        self.pending_bytes -= len(pending.frame)

    def _clear_pending(self) -> None:
        self._pending.clear()
        self.pending_bytes = 0

    def _finish_move(self) -> str | None:
        left = self._left
        if left is None:
            return None
        try:
            for segment in self._files():
                if segment.path.parent == left:
                    make_directory(self.directory)
                    segment.move(self.directory)
        except OSError as error:
            return f"cannot move the journal from {left} to {self.directory}: {error.strerror or error}"
        self._left = None
        with suppress(OSError):  # never made, or other journals are still in it
            left.rmdir()
        return None

    def _files(self) -> Sequence[Segment]:
        return [*self._spool.values(), *self._old, *self._current.values()]

    def _size(self) -> int:
        return sum(file.size for file in self._files())

    def _write(self, item: PendingFrame) -> None:
        """Write one frame below the cap, or count it as dropped if the cap is smaller than the frame."""
        size = len(item.frame)
        if not self._make_room(size + len(self._header)):
            self.dropped[item.signal, "journal_full"] += item.records
            return
        segment = self._segment(item.signal, size)
        is_new = not segment.frames
        try:
            segment.append(item.frame, item.records)
        except OSError as error:
            if segment.file is not None:
                raise
            self._retire(item.signal)
            if is_new and error.errno == errno.EFBIG:  # it fits no file at all: the others must not wait for it
                self.dropped[item.signal, "too_large"] += item.records
                return
            if is_new:
                raise
            self._write(item)  # a new file may do: the limit of file sizes, a stale NFS handle
            return
        self.frames += 1
        self.records[item.signal] += item.records
        self.bytes += size

    def _segment(self, signal: Signal, size: int) -> Segment:
        """Return the segment to append to; begin one if there is none, or if it would become too large."""
        segment = self._current.get(signal)
        if segment is not None and segment.frames and segment.size + size > self._segment_bytes:
            self._retire(signal)
            segment = None
        if segment is None:
            make_directory(self.directory)
            number = self._numbers[signal]
            path = self.directory / f"{self.identity.writer}.{signal}.{number:06d}.otlp"
            try:
                segment = Segment.create(signal, number, path, self._header)
            except FileExistsError:  # of a failure; the next call takes the next number
                self._numbers[signal] += 1
                raise
            self._numbers[signal] += 1
            self._current[signal] = segment
            self.bytes += len(self._header)
        return segment

    def _retire(self, signal: Signal) -> None:
        segment = self._current.pop(signal)
        segment.close()
        if segment.frames:
            self._old.append(segment)

    def _make_room(self, size: int) -> bool:
        while self._size() + size > self._max_bytes:
            if self._spool:  # its records are in memory, too
                self._spool.popitem()[1].remove()
            elif not (self._remove_one() or self._retire_one()):
                return False
        return True

    def _remove_one(self) -> bool:
        """Remove the first old segment that has been sent, which loses nothing, else the oldest one of the spans."""
        unsent = first_unsent(self.directory, self.identity.writer)
        sent = [segment for segment in self._old if segment.number < unsent.get(segment.signal, 0)]
        for segment in [*sent, *sorted(self._old, key=lambda segment: DROP_ORDER.index(segment.signal))]:
            try:
                segment.path.unlink(missing_ok=True)
            except OSError as error:
                self.failure = f"cannot remove {segment.path}: {error.strerror or error}"
                continue
            self._old.remove(segment)
            if segment not in sent:
                self.dropped[segment.signal, "journal_full"] += segment.records
            return True
        return False

    def _retire_one(self) -> bool:
        for signal in DROP_ORDER:
            if signal in self._current:
                self._retire(signal)
                return True
        return False
