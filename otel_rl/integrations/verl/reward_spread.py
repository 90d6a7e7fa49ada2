"""Rewards of verl's samples: their spread and distribution, and groups of equal rewards, of which verl logs nothing.

Source: verl 0.9.1, ``trainer/ppo/v1/utils.py`` and ``trainer/ppo/ray_trainer.py``. The driver computes advantages once
a step, of the scores and groups of the batch that is trained. Padding and empty responses have no token that is
trained, and count nowhere, as in verl's own means.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from otel_rl import vocabulary
from otel_rl.hooks import Args, Kwargs
from otel_rl.metrics.distribution import distribution_of
from otel_rl.probes.host_arrays import of_host
from otel_rl.process.state import state
from otel_rl.records import Deferred, Measured, Point
from otel_rl.single_controller.tracked import GLOBAL

SAME: Final = 1e-8
"""Rewards of a group are equal up to this, as TRL takes them."""


def scored(args: Args, kwargs: Kwargs) -> None:
    """Record the rewards of a step: ``compute_advantage_for_multi_trajectories(data, ...)``."""
    data = args[0]
    scores, mask, groups = data.batch["token_level_scores"], data.batch["response_mask"], data.non_tensor_batch["uid"]
    if scores.device.type == "cpu":
        state.add(Deferred(_records, (scores.sum(-1), mask.any(-1), groups, state.now())))


def scored_by_legacy(args: Args, kwargs: Kwargs) -> None:
    """Record those of the legacy trainer: ``compute_advantage(data, ...)``; V1 calls it inside, without prompts."""
    if "prompts" in set(args[0].batch.keys()):
        scored(args, kwargs)


def _records(scores: Any, is_trained: Any, groups: Any, time_ns: int) -> Iterator[Point | Measured]:
    import numpy as np

    kept = of_host(is_trained)
    rewards = of_host(scores)[kept]
    yield from distribution_of(rewards, (GLOBAL,))
    _, place, sizes = np.unique(groups[kept], return_inverse=True, return_counts=True)
    spread = np.full((2, len(sizes)), -np.inf)
    for row, values in zip(spread, (rewards, -rewards), strict=True):  # the highest, and the lowest negated
        np.maximum.at(row, place, values)
    with np.errstate(invalid="ignore"):  # an infinite reward has no spread
        std, equal = rewards.std(ddof=1) if len(rewards) > 1 else None, spread.sum(0)[sizes > 1] <= SAME
    if std is not None:
        yield Point(vocabulary.REWARD_STD, float(std), time_ns, (GLOBAL,))
    if equal.size:
        yield Point(vocabulary.REWARD_ZERO_STD, float(equal.mean()), time_ns, (GLOBAL,))
