"""Rewards of verl's samples: their spread and distribution, and groups of equal rewards, of which verl logs nothing.

Source: verl 0.9.1, ``trainer/ppo/v1/utils.py`` and ``trainer/ppo/ray_trainer.py``. The driver computes advantages once
a step, of the scores and groups of the batch that is trained. Padding and empty responses have no token that is
trained, and count nowhere, as in verl's own means.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from otel_rl.hooks import Args, Kwargs
from otel_rl.probes.host_arrays import of_host
from otel_rl.process.state import state
from otel_rl.records import Deferred, Measured, Point
from otel_rl.single_controller.reward_records import records_of_rewards


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
    kept = of_host(is_trained)
    yield from records_of_rewards(of_host(scores)[kept], groups[kept], time_ns)
