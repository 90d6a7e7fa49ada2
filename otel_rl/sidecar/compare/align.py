"""Align the steps of several ranks: one is complete when all living ranks are there, or past it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from otel_rl.sidecar.compare.rank_step import ComparedStep, Role

KEPT_STEPS: Final = 64
"""Steps of a role that wait for a rank."""
KEPT_S: Final = 300.0
"""A step waits this long for a rank at most: asynchronous roles end theirs minutes apart."""

StepNumber = tuple[int, int]
"""The loop within its attempt, from 0, and the number of the step in it; both only rise."""


@dataclass(slots=True)
class AlignedStep:
    """One step, as far as it is here."""

    role: Role
    since: float
    """When its first rank was there, monotonic, s."""
    steps: dict[int, ComparedStep] = field(default_factory=dict)
    """Keys are the ranks."""


class Alignment:
    """The steps that wait for ranks."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """Steps that were not compared, by the reason."""
        self._pending: defaultdict[Role, dict[StepNumber, AlignedStep]] = defaultdict(dict)
        self._loops: defaultdict[Role, list[str]] = defaultdict(list)
        self._reached: dict[tuple[Role, int], StepNumber] = {}
        self._left: defaultdict[Role, StepNumber] = defaultdict(lambda: (0, -1))
        """The last step that does not wait any more."""

    def add(self, step: ComparedStep, now: float) -> None:
        """Add the step of one rank; it is counted as late if the step was compared already."""
        loops = self._loops[step.role]
        if step.loop not in loops:
            loops.append(step.loop)
        at = loops.index(step.loop), step.number
        key = step.role, step.rank
        self._reached[key] = max(at, self._reached.get(key, at))
        if at <= self._left[step.role]:
            self.counts["late"] += 1
            return
        aligned = self._pending[step.role].setdefault(at, AlignedStep(step.role, now))
        aligned.steps[step.rank] = step

    def complete(self, now: float, living: Collection[tuple[Role, int]]) -> list[AlignedStep]:
        """Remove and return the steps that wait for no living rank any more, those of a role in order."""
        found: list[AlignedStep] = []
        for role, pending in self._pending.items():
            ranks = [rank for known, rank in living if known == role]
            for at in sorted(pending):
                aligned = pending[at]
                missing = [rank for rank in ranks if self._is_awaited(role, rank, at) and rank not in aligned.steps]
                is_given_up = len(pending) > KEPT_STEPS or now - aligned.since > KEPT_S
                if missing and not is_given_up:
                    break
                del pending[at]
                self._left[role] = at
                if missing:
                    self.counts["rank_missing"] += 1
                else:
                    found.append(aligned)
        return found

    def clear(self) -> None:
        """Forget every step that waits."""
        self._pending.clear()

    def _is_awaited(self, role: Role, rank: int, at: StepNumber) -> bool:
        return self._reached.get((role, rank), (0, -1)) < at
