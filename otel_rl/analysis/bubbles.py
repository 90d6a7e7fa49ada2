"""Bubbles: what a rank waits for in a step, and what the last requests of a rollout cost.

Waits for slower peers, which a rank cannot see by itself, are in ``waits``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from otel_rl.analysis.intervals import Interval, partition

DENOMINATOR: Final[Literal["step"]] = "step"
REASONS: Final = ("data", "queue", "pipeline", "controller", "other")
"""What a rank waits for, as far as it sees that by itself.

It is `data`, samples or a slot or another role's answer, a neighbour's activations or gradients, the next call of the
process that holds the steps, or something else.
"""
PERCENTS: Final = (1, 5, 10)
"""The tail is that of the slowest 1, 5 and 10 percent of the requests."""


def reason_of(reason: str) -> str:
    """Return which of ``REASONS`` a wait counts as; its stage may name anything or nothing."""
    return reason if reason in REASONS else "other"


def bubbles(step: Interval, waits: Mapping[str, Iterable[Interval]]) -> tuple[int, ...]:
    """Return how long one rank waits in one step for each of ``REASONS``, ns, by its own clock.

    A moment counts once, as the first of ``REASONS`` that it waits for, also inside a stage.
    """
    return partition([waits.get(reason, ()) for reason in REASONS], *step)[: len(REASONS)]


def tail(ends: Sequence[int], percent: int, wall: int) -> float | None:
    """Return the share of a rollout's time that its slowest requests take alone, from 0 to 1.

    tail(p) = (last finish - finish of quantile 1-p) / wall time of the rollout. The quantile is the finish at which all
    but the slowest p of the requests, rounded down, had finished. ``ends`` are in ascending order. The result is None
    if p of the requests are less than one, or if the rollout took no time.
    """
    slow = len(ends) * percent // 100
    if not slow or wall <= 0:
        return None
    return min(1.0, (ends[-1] - ends[-1 - slow]) / wall)


def bubble(ends: Sequence[int], last_start: int, wall: int) -> float | None:
    """Return the share of an engine's slots x time that idles at the end of a rollout, from 0 to 1.

    Once the last request has started, no slot that becomes free is used again. The slots are the requests that run at
    that moment; each idles from the end of its request to the last finish of all. Slots that were free before, and
    engines that began late, do not count. ``ends`` are in ascending order. The result is None if no request runs at
    that moment, or if the rollout took no time.
    """
    running = ends[bisect_right(ends, last_start) :]
    if not running or wall <= 0:
        return None
    slots = len(running)
    return min(1.0, (slots * running[-1] - sum(running)) / (slots * wall))
