"""Agent loops: an environment is stepped in a thread of a pool."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from skyrl.train.generators.base import TRAINING_PHASE_TRAIN, GeneratorInterface


@dataclass
class TrajectoryOutput:
    response_ids: list[int]
    reward: list[float]
    stop_reason: str
    loss_mask: list[int]
    prompt_ids: list[int]


class SkyRLGymGenerator(GeneratorInterface):
    def __init__(self, max_turns: int, environment: Any, inference_engine_client: Any) -> None:
        self.max_turns, self.environment, self.inference_engine_client = max_turns, environment, inference_engine_client
        self.env_executor = ThreadPoolExecutor(max_workers=1)

    async def _run_in_executor_if_available(self, func: Any, *args: Any, **kwargs: Any):
        return await asyncio.get_running_loop().run_in_executor(self.env_executor, func, *args, **kwargs)

    async def agent_loop(
        self,
        prompt: list,
        env_class: str,
        env_extras: dict,
        max_tokens: int,
        max_input_length: int,
        sampling_params: Any = None,
        trajectory_id: Any = None,
        cache_salt: Any = None,
        training_phase: str = TRAINING_PHASE_TRAIN,
    ):
        env = self.environment()
        await self._run_in_executor_if_available(env.init, prompt)
        ids, mask, rewards, is_done = [], [], [], False
        while not is_done:
            answered = await self.inference_engine_client._generate_single(
                prompt_token_ids=[*prompt, *ids], sampling_params={}, session_id=None, model="tiny"
            )
            step = await self._run_in_executor_if_available(env.step, answered["response_ids"])
            is_done = step["done"]
            observed = [] if is_done else step["observations"]
            ids += [*answered["response_ids"], *observed]
            mask += [1] * len(answered["response_ids"]) + [0] * len(observed)
            rewards.append(step["reward"])
        await self._run_in_executor_if_available(env.close)
        return TrajectoryOutput(ids, [0.0] * (len(ids) - 1) + [sum(rewards)], "stop", mask, prompt)

    async def generate(self, input_batch: dict, disable_tqdm: bool = False) -> dict:
        outputs = await asyncio.gather(*(
            self.agent_loop(prompt, "gsm8k", {}, 8, 8, trajectory_id=name,
                            training_phase=input_batch["batch_metadata"].training_phase)
            for prompt, name in zip(input_batch["prompts"], input_batch["trajectory_ids"], strict=True)
        ))  # fmt: skip
        lengths = [len(one.response_ids) for one in outputs]
        return {
            "prompt_token_ids": [one.prompt_ids for one in outputs],
            "response_ids": [one.response_ids for one in outputs],
            "rewards": [one.reward for one in outputs],
            "loss_masks": [one.loss_mask for one in outputs],
            "is_last_step": None,
            "rollout_metrics": {"generate/avg_num_tokens": sum(lengths) / len(lengths)},
        }
