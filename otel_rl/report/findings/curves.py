"""Numbers over the steps, as the rules of learning read them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.analysis.series.change import Change, over_run
from otel_rl.analysis.summary import mean
from otel_rl.report.data.ranks import Rank

NOT_A_NUMBER: Final = ("reward_nan", "update_nan", "learning_rate_zero")
DEAD: Final = (*NOT_A_NUMBER, "policy_collapse")
"""Findings that explain whatever else a run does."""
LOOSE: Final = (v.REQUEST_RATIO, v.GROUPS)
"""Numbers of rollouts, of which there may be more than steps."""
GAINING: Final = 5
BY_CRITIC: Final = ("GAE", "PPO")
"""Algorithms whose advantages are those over a critic's values."""
"""The fewest values that can rise."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """One number over the steps, in their order."""

    name: str
    """Name of the metric."""
    qualifiers: Mapping[str, str]
    """Attributes that distinguish it from others of the same name."""
    steps: Sequence[int | None]
    values: Sequence[float]
    """One per step; NaN and Inf as recorded."""
    who: Rank | None = None
    """The one rank that recorded it; None for the mean of the ranks."""

    @property
    def rank(self) -> int | None:
        return None if self.who is None else self.who.rank

    @property
    def function(self) -> str:
        """Return the reward function whose score it is; empty for other numbers."""
        return self.qualifiers.get(v.REWARD_FUNCTION, "")

    def step(self, index: int) -> int:
        """Return the number of a step, or its place if it has none."""
        number = self.steps[index]
        return index + 1 if number is None else number

    def bad(self) -> list[bool]:
        """Return for each step whether its value is NaN or infinite."""
        return [not math.isfinite(value) for value in self.values]

    def good(self) -> Curve:
        """Return its finite values."""
        steps = [place if step is None else step for place, step in enumerate(self.steps, 1)]
        kept = [pair for pair in zip(steps, self.values, strict=True) if math.isfinite(pair[1])]
        return Curve([step for step, _ in kept], [value + 0.0 for _, value in kept])  # -0.0 is written as 0


@dataclass(frozen=True)
class Curve:
    """Finite values and the numbers of their steps."""

    steps: Sequence[int] = ()
    values: Sequence[float] = ()

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def change(self) -> Change:
        """Compare the end with the beginning."""
        return over_run(self.values)

    def before(self, step: int) -> list[float]:
        return [value for one, value in zip(self.steps, self.values, strict=True) if one < step]

    def since(self, step: int) -> list[float]:
        return [value for one, value in zip(self.steps, self.values, strict=True) if one >= step]

    def third(self, which: int) -> float:
        """Return the mean of the first (0), second or last (2) third; NaN without a value."""
        size = max(1, len(self.values) // 3)
        part = self.values[-size:] if which == 2 else self.values[which * size : (which + 1) * size]
        return mean(part) if part else math.nan


@dataclass(frozen=True, kw_only=True)
class Learning:
    """What the rules of learning read."""

    series: Sequence[Numbers] = field(default_factory=list)
    of_ranks: Sequence[Numbers] = field(default_factory=list)
    """Values of single ranks: series that were ever NaN or infinite, and how many answers got such a reward."""
    answers: float | None = None
    """Answers of a rank in a rollout, the median; None if nobody counted."""
    settings: Mapping[str, float] = field(default_factory=dict)
    """Settings that the training recorded in its set-up, as in the report."""
    is_led: bool = False
    """A driver calls the ranks: what it gives them to train on has the log-probabilities of before the update."""
    groups: int = 0
    """Prompts that were sampled for the training, as far as groups are told apart."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Of them those that no step trains on, by reason."""

    algorithm: str = ""
    """As recorded: ``GRPO``; empty if unknown."""

    @cached_property
    def equal_groups(self) -> Curve:
        """Return the share of groups whose rewards are all equal, by step.

        It is empty with a critic: the baseline is not the group's then.
        """
        return Curve() if self.algorithm.upper() in BY_CRITIC else self.curve(v.REWARD_ZERO_STD)

    def all_of(self, *names: str) -> Iterator[Numbers]:
        """Find the series of training by their names."""
        for one in self.series:
            if one.name in names and (one.qualifiers.get(v.MODE) != "eval" or one.name == v.EVAL_REWARD):
                yield one

    def numbers(self, name: str) -> Numbers | None:
        """Return the series of training with a name that has the fewest further attributes."""
        return min(self.all_of(name), key=lambda one: len(set(one.qualifiers) - {v.SCOPE_KEY}), default=None)

    def curve(self, name: str) -> Curve:
        """Return the finite values of a series; an empty curve without it."""
        if name not in self._curves:
            one = self.numbers(name)
            self._curves[name] = Curve() if one is None else one.good()
        return self._curves[name]

    def loss_term(self, kind: str) -> Curve:
        """Return the finite values of one term of the loss: `policy`, `value`, ..."""
        terms = [one for one in self.all_of(v.LOSS_TERM) if one.qualifiers.get(v.LOSS_TYPE) == kind]
        return terms[0].good() if terms else Curve()

    def functions(self, name: str) -> dict[str, Numbers]:
        """Return the series of every reward function that have this name."""
        return {one.function: one for one in self.all_of(name) if one.function}

    @cached_property
    def _curves(self) -> dict[str, Curve]:
        return {}

    @cached_property
    def is_gaining(self) -> bool:
        """Return whether the reward is higher at the end than at the beginning."""
        return len(self.curve(v.REWARD_SCORE)) > 1 and self.curve(v.REWARD_SCORE).change.is_rise

    @cached_property
    def steps(self) -> int:
        """Steps of the longest series; there may be more rollouts than steps."""
        return max((len(one.values) for one in self.series if one.name not in LOOSE), default=0)

    def noun(self, points: int) -> str:
        """Return what so many points of a series are: of several updates with one rollout only one knows rewards."""
        return "step" if points * 4 > self.steps * 3 else "rollout"


def same_steps(*curves: Curve) -> list[Curve]:
    """Return of each curve what belongs to steps that all have."""
    known = [dict(zip(curve.steps, curve.values, strict=True)) for curve in curves]
    steps = [step for step in known[0] if all(step in one for one in known)]
    return [Curve(steps, [one[step] for step in steps]) for one in known]


def gains_since(reward: Curve, step: int) -> bool:
    """Return whether the reward is higher at the end than when something began."""
    since = reward.since(step)
    return len(since) >= GAINING and Curve(range(len(since)), since).change.is_rise
