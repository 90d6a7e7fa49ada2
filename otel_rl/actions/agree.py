"""How ranks act after the same step, without a collective.

Rank 0 puts what it decides into the process group's store, for a step that is ``AHEAD`` of its own; the other ranks
look there after each step. A step's gradients need every rank, so no rank ends a step before rank 0 has ended the one
before it, and each finds the note in time.
"""

from __future__ import annotations

from typing import Any, Final

AHEAD: Final = 2
READY, SETTINGS, NOTE = "ready/{}", "settings", "note/{}/{}"
PREFIX: Final = "otel_rl/actions/{}/"
"""Begin of the keys of an attempt."""


def share(store: Any, attempt: str, settings: str) -> None:
    """Let the other ranks have the settings of rank 0: a node may have no such file, or another one."""
    store.set(PREFIX.format(attempt) + SETTINGS, settings)


def shared(store: Any, attempt: str, rank: int) -> str:
    """Return the settings of rank 0, and let it know that this rank has them; empty if it has none."""
    prefix = PREFIX.format(attempt)
    if not store.check([prefix + SETTINGS]):
        return ""
    settings: str = store.get(prefix + SETTINGS).decode()
    store.set(prefix + READY.format(rank), "")
    return settings


class Agreement:
    """The notes of rank 0 to all ranks in one training loop of an attempt.

    Args:
        store: of the process group; None without one: then this process agrees with itself at once.
        attempt: its id.
        loop: how many loops of the attempt had actions before.
        rank: of this process.
        world_size: how many ranks there are.
    """

    def __init__(self, store: Any, attempt: str, loop: int, rank: int, world_size: int) -> None:
        self._store, self._prefix, self._loop = store, PREFIX.format(attempt), loop
        self._others = [self._prefix + READY.format(other) for other in range(1, world_size)]
        self.leads = rank == 0
        self.begins = 1 if store is None else 1 + AHEAD
        """The first step of a training after which the ranks of an attempt act."""
        self._notes = 0
        self._due: list[tuple[int, str]] = []

    def is_complete(self) -> bool:
        """Return whether all other ranks have the settings; for rank 0."""
        return self._store is None or bool(self._store.check(self._others))

    def note(self, what: str, step: int) -> None:
        """Let all ranks do something after the step ``AHEAD`` of this one; for rank 0."""
        due = step if self._store is None else step + AHEAD
        if self._store is not None:
            self._store.set(self._prefix + NOTE.format(self._loop, self._notes), f"{due} {what}")
            self._notes += 1
        self._due.append((due, what))

    def due(self, step: int) -> list[str]:
        """Return what is to be done after a step; also what was due before, if this rank has overslept it."""
        while not self.leads and self._store.check([key := self._prefix + NOTE.format(self._loop, self._notes)]):
            due, _, what = self._store.get(key).decode().partition(" ")
            self._due.append((int(due), what))
            self._notes += 1
        now = [what for due, what in self._due if due <= step]
        self._due = [(due, what) for due, what in self._due if due > step]
        return now
