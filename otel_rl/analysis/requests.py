"""What the last requests of a rollout cost: its tail, and the slots of the engine that idle at its end."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

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
