"""Rewards."""

from typing import Any

from tests.slime.world import tick


async def async_rm(args: Any, sample: Any, **kwargs: Any) -> Any:
    tick(1)
    return 1.0


async def batched_async_rm(args: Any, samples: Any, inplace_set_reward_field: Any = False, **kwargs: Any) -> Any:
    return [await async_rm(args, sample) for sample in samples]
