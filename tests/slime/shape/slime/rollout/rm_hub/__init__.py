"""Rewards."""

from typing import Any

from tests.slime.world import tick


async def async_rm(args: Any, sample: Any, **kwargs: Any) -> Any:
    tick(1)
    if sample.index == args.broken_reward:
        raise OSError("theirs")
    return float(sample.index % 2)


async def batched_async_rm(args: Any, samples: Any, **kwargs: Any) -> Any:
    return [await async_rm(args, sample) for sample in samples]
