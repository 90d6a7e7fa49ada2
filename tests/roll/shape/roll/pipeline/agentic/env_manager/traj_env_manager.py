"""An environment: it plays one episode after the other until it is told to stop. An episode has two turns."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import ray
from codetiming import Timer
from roll.distributed.scheduler.protocol import DataProto
from roll.distributed.scheduler.router import RayProxy, RouterClient
from roll.pipeline.agentic.env_manager.base_env_manager import BaseEnvManager, RolloutCache
from roll.utils.constants import GenerateStopReason
from roll.utils.telemetry import attach_trace_context, get_tracer

TURNS = 2


class TrajEnvManager(BaseEnvManager):
    def __init__(
        self,
        worker_config,
        pipeline_config,
        env_config,
        tokenizer,
        generate_scheduler,
        output_queue,
        thread_lock,
        mode="train",
        *args,
        **kwargs,
    ):
        super().__init__()
        self.pipeline_config, self.env_config, self.output_queue = pipeline_config, env_config, output_queue
        self.mode, self.requests = mode, 0
        self.client = RouterClient(RayProxy(generate_scheduler), {})
        self.rollout_cache: Any = None
        self.trace_stack = ExitStack()

    def run_rollout_loop(self, data: DataProto):
        self.running, group_id, env_id = True, self.env_config["group_id"], self.env_config["env_id"]
        self.group_seed = data.meta_info["seed"] + group_id
        cache = self.reset()
        start_step = self.current_step
        while self.running and cache is not None:
            with Timer(name="generate", logger=None), get_tracer("env_manager").start_as_current_span("generate"):
                lm_output = self.make_decision(cache)
                stop_reason = lm_output.meta_info.pop("stop_reason")
            with Timer(name="step", logger=None), get_tracer("env_manager").start_as_current_span("step"):
                if stop_reason == GenerateStopReason.FINISH:
                    cache = self.step(lm_output)
            if self.running and cache.terminated:
                rollout = self.formulate_rollouts(cache)
                name = f"{cache.tag}_{cache.group_id}_{self.episode_id}_{self.group_seed}_{cache.env_id}"
                rollout.non_tensor_batch["traj_id"] = np.array([name], dtype=object)
                ray.get(self.output_queue.put.remote(group_id, self.episode_id, start_step, rollout, env_id))
                self.trace_stack.close()
                cache = self.reset()
                start_step = self.current_step
        ray.get(self.output_queue.put.remote(group_id, self.episode_id, start_step, None, env_id))

    def reset(self) -> RolloutCache | None:
        config = self.env_config
        self.rollout_cache = RolloutCache(env_id=config["env_id"], group_id=config["group_id"], tag=config["tag"])
        self.episode_id = ray.get(self.output_queue.get_episode_id.remote(config["group_id"], config["env_id"]))
        if self.episode_id is None:
            return None
        self.trace_stack = ExitStack()
        self.trace_stack.enter_context(attach_trace_context(self.trace_meta))
        self.trace_stack.enter_context(get_tracer("env_manager").start_as_current_span("trajectory"))
        self.rollout_cache.history.append({"observation": "a", "messages": None})
        return self.rollout_cache

    def step(self, llm_output: DataProto):
        cache = self.rollout_cache
        cache.step += 1
        cache.terminated = cache.step >= TURNS
        cache.history.append({"observation": "b", "messages": None})
        return cache

    def make_decision(self, rollout_cache: RolloutCache):
        content, self.requests = self.rollout_cache.history[-1], self.requests + 1
        content["prompt_ids"] = [1, 2, 3]
        request_id = f"{self.mode}_{self.env_config['env_id']}_{self.requests}"
        request = DataProto({"input_ids": np.array([[1, 2, 3]])}, meta_info={})
        answer = self.client.generate_request_sync(req=request, request_id=request_id, uid=self.env_config["env_id"])
        if answer is None:
            return DataProto(meta_info={"stop_reason": GenerateStopReason.ABORT})
        (content["response_ids"],) = answer.meta_info["output_token_ids"]
        said = {"stop_reason": GenerateStopReason.FINISH}
        return DataProto({"responses": np.array([content["response_ids"]])}, meta_info=said)

    def formulate_rollouts(self, rollout_cache: RolloutCache):
        turns = [turn["prompt_ids"] + turn["response_ids"] for turn in rollout_cache.history if "response_ids" in turn]
        ids = np.array([[token for turn in turns for token in turn]])
        tensors = {"input_ids": ids[:, :4], "attention_mask": np.ones_like(ids), "response_mask": (ids > 3).astype(int)}
        tensors["prompt_mask"] = (np.arange(ids.shape[1]) < 3)[None].astype(int)
        return DataProto({**tensors, "scores": np.ones(1)})
