"""Which ranks' parts of a step are together: all living ones, or those of ranks that are past it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from otel_rl.sidecar.compare.rank_step import Part, Role

KEPT_STEPS: Final = 64
"""Steps of a role that wait for a rank."""
KEPT_S: Final = 300.0
"""So long a step waits for a rank: asynchronous roles end theirs minutes apart."""

Place = tuple[int, int]
"""Which loop of its attempt, from 0, and the step's number in it; loops and numbers only rise."""


@dataclass(slots=True)
class Meeting:
    """One step, as far as it is here."""

    role: Role
    since: float
    """When its first part came, monotonic, s."""
    parts: dict[int, Part] = field(default_factory=dict)
    """By rank."""


class Meetings:
    """The steps that wait for ranks."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """Steps that were not compared, by the reason."""
        self._waiting: defaultdict[Role, dict[Place, Meeting]] = defaultdict(dict)
        self._loops: defaultdict[Role, list[str]] = defaultdict(list)
        self._reached: dict[tuple[Role, int], Place] = {}
        self._left: defaultdict[Role, Place] = defaultdict(lambda: (0, -1))
        """The last step that waits no more."""

    def add(self, part: Part, now: float) -> None:
        """Take in one rank's part; one whose step is over already comes too late."""
        loops = self._loops[part.role]
        if part.loop not in loops:
            loops.append(part.loop)
        place = loops.index(part.loop), part.number
        key = part.role, part.rank
        self._reached[key] = max(place, self._reached.get(key, place))
        if place <= self._left[part.role]:
            self.counts["late"] += 1
            return
        meeting = self._waiting[part.role].setdefault(place, Meeting(part.role, now))
        meeting.parts[part.rank] = part

    def complete(self, now: float, living: Collection[tuple[Role, int]]) -> list[Meeting]:
        """Take out the steps for which no living rank is waited any more, those of a role in order.

        Args:
            now: monotonic, s.
            living: the ranks that may still write.
        """
        found: list[Meeting] = []
        for role, waiting in self._waiting.items():
            ranks = [rank for known, rank in living if known == role]
            for place in sorted(waiting):
                meeting = waiting[place]
                missing = [rank for rank in ranks if self._is_awaited(role, rank, place) and rank not in meeting.parts]
                is_given_up = len(waiting) > KEPT_STEPS or now - meeting.since > KEPT_S
                if missing and not is_given_up:
                    break
                del waiting[place]
                self._left[role] = place
                if missing:
                    self.counts["rank_missing"] += 1
                else:
                    found.append(meeting)
        return found

    def clear(self) -> None:
        """Let go of every step that waits."""
        self._waiting.clear()

    def _is_awaited(self, role: Role, rank: int, place: Place) -> bool:
        return self._reached.get((role, rank), (0, -1)) < place
