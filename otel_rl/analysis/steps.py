"""Steps tile the loop: each lasts from its begin to the next one's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

WARMUP_STEPS: Final = 2
"""First steps of an attempt that stay out of averages: they allocate, compile and fill caches."""


@dataclass(frozen=True, slots=True, order=True)
class Step:
    """One step of one rank; ordered by its begin."""

    begin_ns: int
    end_ns: int
    loop: str
    iteration: int

    @property
    def time_ns(self) -> int:
        """The step time."""
        return self.end_ns - self.begin_ns


def tile(steps: Sequence[Step]) -> list[Step]:
    """Let each step of one rank and attempt end where the next one begins.

    A step whose successor is not there (the last of its loop, or one whose record was lost) keeps its own end, so that
    a hole in the record never makes a step longer.

    Returns:
        The steps in order of time.
    """
    ordered = sorted(steps)
    tiled = [
        replace(step, end_ns=following.begin_ns) if _follows(step, following) else step
        for step, following in pairwise(ordered)
    ]
    return tiled + ordered[-1:]


def _follows(step: Step, following: Step) -> bool:
    return following.loop == step.loop and following.iteration == step.iteration + 1


def warmup(count: int) -> int:
    """Say how many first steps of an attempt with ``count`` steps stay out of averages: two, fewer below eight."""
    return min(WARMUP_STEPS, count // 4)
