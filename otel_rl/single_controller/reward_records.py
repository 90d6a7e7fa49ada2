"""Rewards of a step's samples: their spread and distribution, and groups of equal rewards; drivers log none of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from otel_rl import vocabulary
from otel_rl.metrics.distribution import distribution_of
from otel_rl.records import Measured, Point
from otel_rl.single_controller.tracked import GLOBAL

SAME: Final = 1e-8
"""Rewards of a group are equal up to this, as TRL takes them."""


def records_of_rewards(rewards: Any, groups: Any, time_ns: int) -> Iterator[Point | Measured]:
    """Make the records of the rewards of a step.

    Args:
        rewards: an array with one of each sample that is trained.
        groups: an array of the keys of their groups.
        time_ns: when they were known, ns since 1970.
    """
    yield from spread_of_rewards(rewards, time_ns)
    yield from equal_groups(rewards, groups, time_ns)


def spread_of_rewards(rewards: Any, time_ns: int) -> Iterator[Point | Measured]:
    """Make the records of the rewards alone: their distribution and spread."""
    import numpy as np

    yield from distribution_of(rewards, (GLOBAL,))
    with np.errstate(invalid="ignore"):  # an infinite reward has no spread
        std = rewards.std(ddof=1) if len(rewards) > 1 else None
    if std is not None:
        yield Point(vocabulary.REWARD_STD, float(std), time_ns, (GLOBAL,))


def equal_groups(rewards: Any, groups: Any, time_ns: int) -> Iterator[Point]:
    """Make the record of the share of groups, of two samples or more, whose rewards are all equal."""
    import numpy as np

    _, place, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    spread = np.full((2, len(sizes)), -np.inf)
    with np.errstate(invalid="ignore"):  # of rewards that are NaN or infinite numpy warns
        for row, values in zip(spread, (rewards, -rewards), strict=True):  # the highest, and the lowest negated
            np.maximum.at(row, place, values)
        equal = spread.sum(0)[sizes > 1] <= SAME
    if equal.size:
        yield Point(vocabulary.REWARD_ZERO_STD, float(equal.mean()), time_ns, (GLOBAL,))
