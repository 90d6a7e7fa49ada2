"""What wakes the flusher: an event that a signal handler may set while it is being set."""

from __future__ import annotations

from queue import Empty, SimpleQueue


class Wake:
    """Wakes the one thread that waits for it.

    The lock of a ``threading.Event`` is not re-entrant: a signal that arrives while the training thread holds it, with
    a handler that flushes as preemption handlers do, would wait for itself.
    """

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Wake the thread, or keep it from its next sleep; from any thread and any signal handler. Cost: 0.1 us."""
        self._calls.put(None)

    def wait(self, timeout_s: float) -> bool:
        """Sleep until it is set, at most so long; say whether it was set, and forget it."""
        try:
            self._calls.get(timeout=timeout_s)
        except Empty:
            return False
        while not self._calls.empty():
            self._calls.get()
        return True
