"""Bubbles: what a rank waits for in a step, and what the last requests of a rollout cost.

Waits for slower peers, which a rank cannot see by itself, are in ``waits``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from otel_rl.analysis.intervals import Interval, partition

DENOMINATOR: Final[Literal["step"]] = "step"
"""Shares of a rank's bubbles are shares of its step time."""
REASONS: Final = ("data", "queue", "pipeline", "other")
"""What a rank waits for, as far as it sees that by itself; a moment that waits for several is the first of them."""
PERCENTS: Final = (1, 5, 10)
"""The tail is that of the slowest 1, 5 and 10 percent of the requests."""


@dataclass(frozen=True, slots=True)
class Bubbles:
    """The bubbles of one rank in one step, ns, by ``REASONS``."""

    step_ns: int
    data_ns: int
    queue_ns: int
    """Waits for samples, for a slot, or for another role's answer."""
    pipeline_ns: int
    """Waits for a neighbour's activations or gradients."""
    other_ns: int

    @property
    def shares(self) -> dict[str, float]:
        """Each bubble as a share of the step; empty for a step without time."""
        if self.step_ns <= 0:
            return {}
        own = zip(REASONS, (self.data_ns, self.queue_ns, self.pipeline_ns, self.other_ns), strict=True)
        return {name: value / self.step_ns for name, value in own}


def reason_of(reason: str) -> str:
    """Return which of ``REASONS`` a wait counts as; its stage may name anything or nothing."""
    return reason if reason in REASONS else "other"


def bubbles(step: Interval, waits: Mapping[str, Iterable[Interval]]) -> Bubbles:
    """Find the bubbles of one rank in one step, by its own clock.

    A moment counts once, as the first of ``REASONS`` that it waits for, also inside a stage.
    """
    begin, end = step
    data_ns, queue_ns, pipeline_ns, other_ns, _ = partition([waits.get(reason, ()) for reason in REASONS], begin, end)
    return Bubbles(max(0, end - begin), data_ns, queue_ns, pipeline_ns, other_ns)


def tail(ends: Sequence[int], percent: int, wall: int) -> float | None:
    """Return the share of a rollout's time that its slowest requests take alone, from 0 to 1.

    tail(p) = (last finish - finish of quantile 1-p) / wall time of the rollout. The quantile is the finish at which all
    but the slowest p of the requests, rounded down, had finished.

    Args:
        ends: when the requests finished, ascending, any unit.
        percent: p, 1 to 99.
        wall: time of the rollout in the same unit.

    Returns:
        None if p of the requests are less than one, or if the rollout took no time.
    """
    slow = len(ends) * percent // 100
    if not slow or wall <= 0:
        return None
    return min(1.0, (ends[-1] - ends[-1 - slow]) / wall)


def bubble(ends: Sequence[int], last_start: int, wall: int) -> float | None:
    """Return the share of an engine's slots x time that idles at the end of a rollout, from 0 to 1.

    Once the last request has started, no slot that becomes free is used again. The slots are the requests that run at
    that moment; each idles from the end of its request to the last finish of all. Slots that were free before, and
    engines that began late, do not count.

    Args:
        ends: when the requests finished, ascending, any unit.
        last_start: when the engine started the last of them, same unit.
        wall: time of the rollout in the same unit.

    Returns:
        None if no request runs at that moment, or if the rollout took no time.
    """
    running = ends[bisect_right(ends, last_start) :]
    if not running or wall <= 0:
        return None
    slots = len(running)
    return min(1.0, (slots * running[-1] - sum(running)) / (slots * wall))
