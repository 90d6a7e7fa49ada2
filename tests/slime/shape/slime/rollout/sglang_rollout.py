"""Groups and trajectories."""

import asyncio
from typing import Any

from slime.rollout.rm_hub import async_rm, batched_async_rm
from slime.utils.http_utils import post
from tests.slime.world import Sample


async def generate_and_rm(args: Any, sample: Any, sampling_params: Any, evaluation: Any = False) -> Any:
    if sample.status is Sample.Status.COMPLETED:
        return sample
    output = await post("http://router:1/generate", {"input_ids": sample.tokens, "version": args.version})
    sample.tokens, count = [*sample.tokens, 3, 4], output["meta_info"]["completion_tokens"]
    sample.response_length += count
    sample.weight_versions.append(output["meta_info"]["weight_version"])
    sample.status = Sample.Status.COMPLETED
    if not args.group_rm:
        sample.reward = await async_rm(args, sample)
    return sample


async def generate_and_rm_group(args: Any, group: Any, sampling_params: Any, evaluation: Any = False) -> Any:
    tasks = [
        asyncio.create_task(generate_and_rm(args, sample, sampling_params.copy(), evaluation=evaluation))
        for sample in group
    ]
    group = await asyncio.gather(*tasks)
    if args.group_rm:
        for sample, reward in zip(group, await batched_async_rm(args, group), strict=True):
            sample.reward = reward
    return group
