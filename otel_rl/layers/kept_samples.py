"""Which samples of a step have a log record: failed ones, extreme ones, and a uniform sample; all within a limit."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import isfinite, sqrt
from typing import Any, Final
from zlib import crc32

from otel_rl.records import Value

EXTREMES: Final = 32
"""The part of the limit that each kind of extreme has at most, as a divisor; failures have a quarter."""
SPARE: Final = 256
"""Samples that wait beyond four times the limit before those that cannot be kept are left out."""
MOST_LENGTHS: Final = 100_000
"""Lengths and rewards that are kept of a step for the line of its rollout."""


@dataclass(eq=False, slots=True)
class FinishedSample:
    """One finished sample; what is None is not known."""

    id: str = ""
    group: str = ""
    reward: float | None = None
    rewards: dict[str, float] = field(default_factory=dict)
    """Rewards by reward function."""
    advantage: float | None = None
    prompt_tokens: int | None = None
    response_tokens: int | None = None
    environment_tokens: int | None = None
    turns: int | None = None
    tool_calls: int | None = None
    finish: str = ""
    error: str = ""
    """Class of the exception that it failed with."""
    policy_version: int | None = None
    discarded: str | None = ""
    """Why it is not trained on; empty if it is."""
    prompt: Any = None
    response: Any = None
    time_ns: int = 0
    span_id: int = 0
    """The span that made it."""
    is_evaluation: bool = False
    """It was made in an evaluation, not for training."""
    number: int = 0
    """Its number among the samples of its step, in their order."""
    score: int = 0
    """A hash of step and id, by which the uniform sample is chosen."""

    @property
    def is_failed(self) -> bool:
        """Return whether it failed, was aborted, or has a reward that is no number."""
        is_bad = self.reward is not None and not isfinite(self.reward)
        return bool(self.error) or is_bad or self.finish in {"abort", "timeout", "error"}

    @property
    def length(self) -> int:
        """Tokens of its response, those of an environment included; below 0 if unknown."""
        return -1 if self.response_tokens is None else self.response_tokens + (self.environment_tokens or 0)


class StepSamples:
    """The samples of one trace so far; of many only those that may be kept."""

    def __init__(self, limit: int, seed: str) -> None:
        self.limit = limit
        self.count = 0
        self.evaluated = 0
        """The number of samples that an evaluation made. The sums leave them out."""
        self.lengths: list[int] = []
        self.rewards: list[float] = []
        self.finishes: dict[str, int] = {}
        self.touched_ns = 0
        """When the last one came (monotonic)."""
        self._seed = crc32(seed.encode())
        self._waiting: list[FinishedSample] = []

    def add(self, samples: Iterable[FinishedSample]) -> None:
        """Add samples, in their order."""
        for sample in samples:
            sample.number = self.count
            self.count += 1
            sample.score = crc32((sample.id or str(sample.number)).encode(errors="replace"), self._seed)
            self._waiting.append(sample)
            self.evaluated += sample.is_evaluation
            if not sample.is_evaluation:
                self._sum_up(sample)
            if len(self._waiting) > 4 * self.limit + SPARE:
                kept = {id(one): one for kind in kinds(self._waiting, self.limit).values() for one in kind}
                self._waiting = sorted(kept.values(), key=_number)

    def _sum_up(self, sample: FinishedSample) -> None:
        if sample.finish and (sample.finish in self.finishes or len(self.finishes) < EXTREMES):
            self.finishes[sample.finish] = self.finishes.get(sample.finish, 0) + 1
        if len(self.lengths) < MOST_LENGTHS and sample.length >= 0:
            self.lengths.append(sample.length)
        if len(self.rewards) < MOST_LENGTHS and sample.reward is not None and isfinite(sample.reward):
            self.rewards.append(sample.reward)

    def chosen(self, room: int) -> list[tuple[FinishedSample, str]]:
        """Return at most ``room`` samples in their order, and why each is kept; empty where all are."""
        if self.count <= room:
            return [(sample, "") for sample in self._waiting]
        reasons: dict[int, list[str]] = {}
        samples: dict[int, FinishedSample] = {}
        for kind, candidates in kinds(self._waiting, self.limit).items():
            for sample in candidates:
                if sample.number in samples:
                    reasons[sample.number].append(kind)
                elif len(samples) < room:
                    samples[sample.number], reasons[sample.number] = sample, [kind]
        return [(samples[number], ",".join(reasons[number])) for number in sorted(samples)]


def kinds(samples: list[FinishedSample], limit: int) -> dict[str, list[FinishedSample]]:
    """Return the samples of each kind, the first of a kind first.

    What is not among them is not among them either when further samples come: so a step may leave it out at once.
    """
    few, scored = max(1, limit // EXTREMES), [one for one in samples if one.reward is not None and isfinite(one.reward)]
    failed = (one for one in samples if one.is_failed)
    return {
        "failed": heapq.nsmallest(max(1, limit // 4), failed, key=_number),
        "best": heapq.nsmallest(few, scored, key=_best),
        "worst": heapq.nsmallest(few, scored, key=_worst),
        "longest": heapq.nsmallest(few, samples, key=_longest),
        "sample": heapq.nsmallest(limit, samples, key=_score),
    }


def _number(sample: FinishedSample) -> int:
    return sample.number


def _best(sample: FinishedSample) -> tuple[float, int]:
    return -(sample.reward or 0.0), sample.number


def _worst(sample: FinishedSample) -> tuple[float, int]:
    return sample.reward or 0.0, sample.number


def _longest(sample: FinishedSample) -> tuple[int, int]:
    return -sample.length, sample.number


def _score(sample: FinishedSample) -> tuple[int, int]:
    return sample.score, sample.number


def mean_and_spread(values: list[float]) -> tuple[float, float]:
    """Return mean and standard deviation of a sample; infinity where they are too large for a number."""
    mean = sum(values) / len(values)
    squares = sum((value - mean) * (value - mean) for value in values)
    return mean, sqrt(squares / max(1, len(values) - 1))


def quantiles(lengths: list[int]) -> Value:
    """Return the lengths that 5, 25, 50, 75 and 95 % do not exceed."""
    ordered = sorted(lengths)
    return [ordered[-(-len(ordered) * percent // 100) - 1] for percent in (5, 25, 50, 75, 95)]
