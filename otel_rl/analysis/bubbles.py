"""Bubbles of one rank in one step: for whom or for what it waits, and in which part of which time.

Every share says what it was divided by. Waits for slower peers, which a rank cannot see, are in
``analysis/waits.py``, and what idles inside an engine at the end of a rollout in ``analysis/requests.py``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from otel_rl.analysis.intervals import Interval, partition

Denominator = Literal["step"]
"""The rank's step time."""

REASONS: Final = ("data", "queue", "pipeline", "other")
"""For what a rank waits, as far as it sees that by itself; a moment that waits for several is the first of them."""


@dataclass(frozen=True, slots=True)
class Share:
    """A bubble as a ratio, and what it was divided by."""

    value: float
    denominator: Denominator


@dataclass(frozen=True, slots=True)
class Bubbles:
    """The bubbles of one rank in one step, ns."""

    step_ns: int
    """The denominator."""
    data_ns: int
    """Waiting for the data loader."""
    queue_ns: int
    """Waiting for samples, for a slot, for another role's answer."""
    pipeline_ns: int
    """Waiting for a neighbour's activations or gradients."""
    other_ns: int
    """Waiting for anything else, or nobody said for what."""

    @property
    def shares(self) -> dict[str, Share]:
        """Each bubble of the step; nothing of a step without time."""
        if self.step_ns <= 0:
            return {}
        own = zip(REASONS, (self.data_ns, self.queue_ns, self.pipeline_ns, self.other_ns), strict=True)
        return {name: Share(value / self.step_ns, "step") for name, value in own}


def reason_of(said: str) -> str:
    """Say which of ``REASONS`` a wait counts as, by what its stage says, which may be anything or nothing."""
    return said if said in REASONS else "other"


def bubbles(step: Interval, waits: Mapping[str, Iterable[Interval]]) -> Bubbles:
    """Find the bubbles in one rank's own intervals, all by its own clock.

    A moment counts once, as the first of ``REASONS`` that it waits for, also inside a stage.

    Args:
        step: begin and end, ns.
        waits: by ``reason_of`` what they are for.
    """
    begin, end = step
    data_ns, queue_ns, pipeline_ns, other_ns, _ = partition([waits.get(reason, ()) for reason in REASONS], begin, end)
    return Bubbles(max(0, end - begin), data_ns, queue_ns, pipeline_ns, other_ns)


PERCENTS: Final = (1, 5, 10)
"""The slowest so many percent of the requests, as the tail is told."""


def tail(ends: Sequence[int], percent: int, wall: int) -> float | None:
    """Say what share of a rollout's time is spent on its slowest requests alone.

    tail(p) = (last finish - finish of quantile 1-p) / rollout wall time, where the quantile is the finish at which all
    but the slowest p of the requests, rounded down, had finished.

    Args:
        ends: when the requests finished, ascending, any unit.
        percent: p, 1 to 99.
        wall: time of the rollout in the same unit.

    Returns:
        0 to 1, at most: a finish after the end of the rollout counts as its end. None where p of the requests are less
        than one, or where the rollout took no time.
    """
    slow = len(ends) * percent // 100
    if not slow or wall <= 0:
        return None
    return min(1.0, (ends[-1] - ends[-1 - slow]) / wall)


def bubble(ends: Sequence[int], last_start: int, wall: int) -> float | None:
    """Say what share of an engine's slots times time idles at the end of a rollout.

    From the moment when the last request starts, no slot that becomes free is used again. The slots are the requests
    that run at that moment; each idles from the end of its request to the last finish of all. The sum of that over
    slots x rollout wall time is the bubble: slots that were free before, and engines that began late, are not in it.

    Args:
        ends: when the requests finished, ascending, any unit.
        last_start: when the last of them was taken up by the engine, same unit.
        wall: time of the rollout in the same unit.

    Returns:
        0 to 1, at most. None without a request that runs at that moment, or where the rollout took no time.

    Cost: O(slots).
    """
    running = ends[bisect_right(ends, last_start) :]
    if not running or wall <= 0:
        return None
    slots = len(running)
    return min(1.0, (slots * running[-1] - sum(running)) / (slots * wall))
