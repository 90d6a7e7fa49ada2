"""Frames that wait in memory because the disk refused them, below a cap."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from otel_rl.journal.frame import Signal

FIRST_TO_GO: Final[tuple[Signal, ...]] = ("traces", "logs", "metrics")
"""What is given up first when there is no room, in memory or on disk."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A frame on its way to the disk."""

    signal: Signal
    frame: bytes
    records: int


class Pending:
    """A queue of frames, bounded by their bytes."""

    def __init__(self, max_bytes: int) -> None:
        """Begin empty."""
        self.bytes = 0
        self._max_bytes = max_bytes
        self._queue: deque[Waiting] = deque()

    def add(self, waiting: Waiting) -> None:
        """Add a frame at the end."""
        self._queue.append(waiting)
        self.bytes += len(waiting.frame)

    def first(self) -> Waiting | None:
        """Look at the oldest frame."""
        return self._queue[0] if self._queue else None

    def has(self, signal: Signal) -> bool:
        """Whether any frame of a signal waits."""
        return any(waiting.signal == signal for waiting in self._queue)

    def remove(self, waiting: Waiting) -> None:
        """Take a frame out, from wherever it is."""
        self._queue.remove(waiting)
        self.bytes -= len(waiting.frame)

    def shrink(self) -> list[Waiting]:
        """Take out what is above the cap, the oldest spans first, and give it."""
        removed: list[Waiting] = []
        for signal in FIRST_TO_GO:
            for waiting in [waiting for waiting in self._queue if waiting.signal == signal]:
                if self.bytes <= self._max_bytes:
                    return removed
                self.remove(waiting)
                removed.append(waiting)
        return removed

    def clear(self) -> list[Waiting]:
        """Take out everything and give it."""
        removed = list(self._queue)
        self._queue.clear()
        self.bytes = 0
        return removed
