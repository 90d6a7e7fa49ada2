"""Rollouts."""

import asyncio
from typing import Any

from tests.nemo_rl.world import Batch, tick


def generate_responses(
    policy_generation: Any,
    generation_input_data: Any,
    batch: Any,
    tokenizer: Any,
    input_lengths: Any,
    include_logprobs: Any = True,
    greedy: Any = False,
) -> Any:
    tick(2)


def calculate_rewards(batch: Any, task_to_env: Any) -> Any:
    tick(1)
    if task_to_env and task_to_env.pop():
        raise OSError("theirs")


def run_multi_turn_rollout(
    policy_generation: Any,
    input_batch: Any,
    tokenizer: Any,
    task_to_env: Any,
    max_seq_len: Any,
    max_rollout_turns: Any = 999999,
    greedy: Any = False,
) -> Any:
    generate_responses(policy_generation, None, input_batch, tokenizer, None)
    calculate_rewards(input_batch, task_to_env)
    means = {"mean_gen_tokens_per_sample": 2.0, "mean_env_tokens_per_sample": 0.5}
    return input_batch, {**means, "truncation_rate": 0.5}


async def async_generate_response_for_sample_turn(
    policy_generation: Any,
    sample_message_log: Any,
    sample_stop_strings: Any,
    tokenizer: Any,
    max_seq_len: Any,
    greedy: Any = False,
) -> Any:
    tick(2)
    await asyncio.sleep(0)
    if policy_generation and policy_generation.pop():
        raise TimeoutError("of the engine")
    return [], [3, 4], 2, {}


async def run_sample_multi_turn_rollout(
    sample_idx: Any,
    initial_sample_state: Any,
    policy_generation: Any,
    tokenizer: Any,
    task_to_env: Any,
    max_seq_len: Any,
    max_rollout_turns: Any = 999999,
    greedy: Any = False,
) -> Any:
    try:
        answer = async_generate_response_for_sample_turn(policy_generation, [], None, tokenizer, max_seq_len)
        _, tokens, _, _ = await answer
    except Exception as error:  # noqa: BLE001 as the real one
        print(error)
        return {}, {"assistant_tokens": 0, "env_tokens": 0, "truncated": False}
    await asyncio.to_thread(calculate_rewards, Batch(task_name=["math"]), task_to_env)
    return {}, {"assistant_tokens": len(tokens), "env_tokens": 1, "truncated": True}


def run_async_multi_turn_rollout(
    policy_generation: Any,
    input_batch: Any,
    tokenizer: Any,
    task_to_env: Any,
    max_seq_len: Any,
    max_rollout_turns: Any = 999999,
    greedy: Any = False,
) -> Any:
    async def sample(place: int) -> None:
        try:
            await run_sample_multi_turn_rollout(
                sample_idx=place,
                initial_sample_state={},
                policy_generation=policy_generation,
                tokenizer=tokenizer,
                task_to_env=task_to_env,
                max_seq_len=max_seq_len,
            )
        except Exception as error:
            raise RuntimeError(f"Error in sample {place} rollout: {error}") from error

    async def run() -> None:
        await asyncio.gather(*(sample(place) for place in range(input_batch.size)))

    asyncio.run(run())
    return input_batch, {"mean_gen_tokens_per_sample": 2.0}


def run_async_nemo_gym_rollout(
    policy_generation: Any,
    input_batch: Any,
    tokenizer: Any,
    task_to_env: Any,
    generation_config: Any,
    max_seq_len: Any = None,
    max_rollout_turns: Any = None,
    greedy: Any = False,
    effort_config: Any = None,
) -> Any:
    pass
