"""When an action is due. It follows from the values alone, so ranks with the same values decide alike."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from typing import NamedTuple

from otel_rl.runs.action_settings import Action


class Saved(NamedTuple):
    """A best checkpoint."""

    value: float
    step: int


@dataclass
class BestSteps:
    """Which checkpoints are the best."""

    action: Action
    kept: list[Saved] = field(default_factory=list)
    """The best first."""
    dropped: list[Saved] = field(default_factory=list)
    """Checkpoints that are no longer among the best and not removed yet."""
    last: int = 0
    """The step of the last one."""

    def is_better(self, value: float, than: float) -> bool:
        """Return whether a value is better; of equal ones the first is."""
        return value > than if self.action.direction == "max" else value < than

    def look(self, value: float, step: int) -> bool:
        """Return whether a step is to be saved, and take it for saved if so."""
        if self.last and step - self.last < self.action.every:
            return False
        is_full = len(self.kept) == self.action.keep
        if is_full and not self.is_better(value, self.kept[-1].value):
            return False
        if is_full:
            self.dropped.append(self.kept.pop())
        kept = [*self.kept, Saved(value, step)]
        self.kept = sorted(kept, key=lambda one: one.value, reverse=self.action.direction == "max")
        self.last = step
        return True


@dataclass
class Held:
    """How often in a row the condition of a stop has held."""

    action: Action
    turns: int = 0
    best: float | None = None

    def look(self, value: float, step: int) -> bool:
        """Return whether the stop is due with the value of its metric at a step."""
        return self.count(is_held=self._holds(value))

    def count(self, *, is_held: bool) -> bool:
        """Return whether the stop is due, as its condition holds or not."""
        self.turns = self.turns + 1 if is_held else 0
        return self.turns >= self.action.times

    def _holds(self, value: float) -> bool:
        action = self.action
        if action.direction:
            is_better = self.best is None or (value > self.best if action.direction == "max" else value < self.best)
            self.best = value if is_better else self.best
            return not is_better
        is_above = action.above is not None and value > action.above
        return is_above or (action.below is not None and value < action.below)


def as_finite(value: object) -> float | None:
    """Return a finite number; None if it is none."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and isfinite(value) else None  # type: ignore[arg-type]
