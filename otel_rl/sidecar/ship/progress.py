"""What of a writer's journal has been acknowledged: kept in a file of its own beside the journal."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Final

from otel_rl.journal.frame import WRITER, Frame, Signal
from otel_rl.journal.segment import shipped_path
from otel_rl.sidecar.streams import JournalStream, Position

COUNTS: Final = ("shipped", "rejected", "refused", "left_out", "fetched", "damaged")
"""What becomes of records: accepted; not accepted of a request that was; refused with their request; above the budget
of a trace; of these, sent after all, since a child of theirs was; and places of the journal that are no frame. None
falls: the records whose turn came are shipped + rejected + refused + left_out - fetched."""


@dataclass
class Range:
    """A part of a stream that is still to be sent."""

    start: Position
    end: Position | None = None
    """None for the last one: it goes on with what is written."""


class ShipProgress:
    """How far one stream has been sent; every change is a step forward.

    The thread that ships changes it and others read it, under a lock, so that they see whole steps.
    """

    def __init__(self) -> None:
        self.ranges = [Range(Position())]
        """In order; all but the last are a backlog."""
        self.counts: Counter[str] = Counter()
        """Records by what became of them, see ``COUNTS``."""
        self.retries: Counter[tuple[str, str]] = Counter()
        """Requests that are sent again, by ``later`` or ``blocked`` and by the answer."""
        self.counts_before: Counter[str] = Counter()
        self.retries_before: Counter[tuple[str, str]] = Counter()
        """What earlier sidecars had counted."""
        self.failure = ""
        """The last answer that put a request off; empty once something was accepted after it."""
        self.closed = False
        """What a dead writer left open was closed."""
        self.closed_ids: frozenset[bytes] = frozenset()
        """The spans that were closed for it; if it lives after all, their real ends are not sent."""
        self.oldest_ns = 0
        """Time of the first record that is not sent; 0 if nothing waits."""
        self.moved_at = 0.0
        """When something was accepted last, s of the monotonic clock; 0 if nothing was yet."""
        self._lock = threading.Lock()

    @property
    def live(self) -> Range:
        """Return what is written now."""
        return self.ranges[-1]

    def split(self, end: Position) -> None:
        """Make everything until a position a backlog, so that what comes after it goes first."""
        with self._lock:
            live = self.live
            if end <= live.start:
                return
            before = self.ranges[-2] if len(self.ranges) > 1 else None
            if before is not None and before.end == live.start:
                before.end, live.start = end, end
            else:
                live.end = end
                self.ranges.append(Range(end))

    def advance(self, part: Range, position: Position, counts: Mapping[str, int] | None = None) -> None:
        """Record that a range is done up to a position, and what became of the records in it."""
        with self._lock:
            part.start = position
            if part.end is not None and position >= part.end:
                self.ranges.remove(part)
            self.counts.update(counts or {})
            self._move()

    def accepted(self) -> None:
        """Record that a request, or a part of one, was accepted."""
        with self._lock:
            self._move()

    def put_off(self, kind: str, reason: str) -> None:
        """Count a request that is sent again; what follows a comma of the reason may be anything, so it is cut."""
        with self._lock:
            self.retries[kind, reason.partition(",")[0]] += 1
            self.failure = reason

    def close_some(self, ids: Iterable[bytes], counts: Mapping[str, int]) -> None:
        """Record that spans which a dead writer left open were closed and sent."""
        with self._lock:
            self.closed_ids |= frozenset(ids)
            self.counts.update(counts)
            self._move()

    def close(self) -> None:
        """Record that everything is closed that a dead writer left open."""
        with self._lock:
            self.closed = True
            self._move()

    def reopen(self) -> None:
        """Record that the writer lives: what it leaves open from now on has to be closed."""
        with self._lock:
            self.closed = False

    def waiting(self, stream: JournalStream) -> int:
        """Return the bytes that are still to be sent."""
        with self._lock:
            ranges = [(part.start, part.end) for part in self.ranges]
        return sum(stream.unread(start) - (stream.unread(end) if end else 0) for start, end in ranges)

    def first_ns(self, stream: JournalStream) -> int:
        """Return when the first record that waits was recorded; 0 if none does. Cost: reads up to 4 MiB."""
        with self._lock:
            start = self.ranges[0].start
        for entry in stream.entries(start, finished=False):
            if isinstance(entry.item, Frame) and entry.item.type != WRITER:
                return entry.item.last_ns
        return 0

    def row(self) -> dict[str, Any]:
        """Return what is kept of it."""
        with self._lock:
            return {
                "ranges": [[part.start, part.end] for part in self.ranges],
                "counts": {name: number for name, number in self.counts.items() if number},
                "retries": sorted([*key, number] for key, number in self.retries.items()),
                "failure": self.failure,
                "closed": self.closed,
                "closed_ids": sorted(span_id.hex() for span_id in self.closed_ids),
            }

    def _move(self) -> None:
        self.failure, self.moved_at = "", monotonic()


def load(directory: Path, writer: str) -> dict[Signal, ShipProgress]:
    """Read a writer's progress; what cannot be read begins anew, since delivery is at least once."""
    try:
        data: Any = json.loads(shipped_path(directory, writer).read_bytes())
    except (OSError, ValueError, RecursionError):
        data = {}
    found: dict[Signal, ShipProgress] = {"traces": ShipProgress(), "metrics": ShipProgress(), "logs": ShipProgress()}
    for signal, progress in found.items():
        with suppress(KeyError, TypeError, ValueError, AttributeError, OverflowError):
            row = data[signal]
            ranges = [Range(_position(start), _position(end) if end else None) for start, end in row["ranges"]]
            counts = Counter({name: int(row["counts"].get(name, 0)) for name in COUNTS})
            closed_ids = frozenset(map(bytes.fromhex, row.get("closed_ids", ())))
            retries = Counter({(str(kind), str(why)): int(number) for kind, why, number in row.get("retries", ())})
            if ranges and ranges[-1].end is None and all(part.end for part in ranges[:-1]):
                progress.ranges, progress.counts, progress.closed = ranges, +counts, row["closed"] is True
                progress.closed_ids = closed_ids
                progress.retries, progress.failure = retries, str(row.get("failure", ""))
                progress.counts_before, progress.retries_before = +counts, +retries
    return found


def save(directory: Path, writer: str, rows: Mapping[Signal, Mapping[str, Any]]) -> None:
    """Write the rows of a writer's progress, whole or not at all."""
    path = shipped_path(directory, writer)
    new = path.with_name(f"{path.name}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(json.dumps(rows, separators=(",", ":")).encode())
    os.replace(new, path)


def _position(place: Any) -> Position:
    segment, offset = place
    if type(segment) is not int or type(offset) is not int or segment < 0 or offset < 0:
        raise ValueError("a position is two numbers")
    return Position(segment, offset)
