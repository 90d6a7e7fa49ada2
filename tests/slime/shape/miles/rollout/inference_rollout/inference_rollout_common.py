"""Groups and trajectories of the newer rollouts."""

from typing import Any

from miles.rollout.rm_hub import async_rm
from miles.utils.http_utils import post


async def generate_and_rm(state: Any, sample: Any, sampling_params: Any, evaluation: Any = False) -> Any:
    output = await post("http://router:1/generate", {"input_ids": sample.tokens})
    sample.tokens, sample.response_length = [*sample.tokens, 3, 4], output["meta_info"]["completion_tokens"]
    sample.reward = await async_rm(state.args, sample)
    return sample


async def generate_and_rm_group(
    state: Any, group: Any, sampling_params: Any, evaluation: Any = False, sample_done_callback: Any = None
) -> Any:
    return [await generate_and_rm(state, sample, sampling_params, evaluation=evaluation) for sample in group]
