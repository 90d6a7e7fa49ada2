"""Schedulers of RLVR: one task makes those of all prompts, as many as the buffer lets run."""

from __future__ import annotations

import asyncio
import copy
import itertools
import math
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
from roll.distributed.scheduler.protocol import DataProto
from roll.distributed.scheduler.router import InprocProxy, RouterClient, RouterManager
from roll.utils.telemetry import attach_trace_context, get_tracer, inject_trace_context


class ReplayBuffer:
    def __init__(self, async_generation_ratio, is_use_additional_prompts, max_additional_running_prompts):
        self.pid = self.batch_size = 0
        self.current_step: Any = None
        self.async_generation_ratio = async_generation_ratio
        self.begun: dict[int, Any] = {}
        self.finished: dict[int, list] = {}
        self.running_prompts = self.running_extra_prompts = self.completed_prompts = 0
        self.is_shut = False
        self.changed = asyncio.Event()

    def advance_step(self, step, batch_size):
        self.current_step = step
        if self.batch_size == 0:
            self.batch_size = math.ceil(batch_size * self.async_generation_ratio)
        self.batch_size += batch_size
        self.changed.set()

    async def until(self, holds: Any) -> None:
        while not holds():
            self.changed.clear()
            await self.changed.wait()

    async def poll(self) -> int:
        await self.until(lambda: self.is_shut or self.running_prompts + self.completed_prompts < self.batch_size)
        if self.is_shut:
            raise asyncio.CancelledError
        self.running_prompts += 1
        self.pid += 1
        self.begun[self.pid - 1] = None
        return self.pid - 1

    async def begin(self, prompt_id) -> int:
        if prompt_id not in self.begun:
            raise asyncio.CancelledError
        self.begun[prompt_id] = self.current_step
        return self.current_step

    def commit(self, prompt_id, result: list):
        if self.begun.pop(prompt_id, None) is None:
            raise asyncio.CancelledError
        self.running_prompts -= 1
        self.completed_prompts += 1
        self.finished[prompt_id] = result
        self.changed.set()

    def abort(self, prompt_id):
        if prompt_id in self.begun:
            del self.begun[prompt_id]
            self.running_prompts -= 1
            self.changed.set()

    async def get_batch(self, expected_samples: int, progress_bar) -> list:
        taken: list = []
        while len(taken) < expected_samples:
            await self.until(lambda: self.finished)
            taken += self.finished.pop(min(self.finished))
        return taken

    def gc(self) -> list[int]:
        oldest = (self.current_step or 0) - math.ceil(self.async_generation_ratio)
        old = [prompt for prompt, step in self.begun.items() if step is not None and step <= oldest]
        for prompt_id in old:
            self.abort(prompt_id)
        return old


class DynamicSamplingScheduler:
    def __init__(
        self,
        pipeline_config,
        actor_cluster,
        reward_clusters: dict,
        dataset,
        collect_fn_cls,
        collect_fn_kwargs,
        state=None,
        is_val: bool = False,
        get_data_item_kwargs=None,
    ):
        from roll.distributed.scheduler.user_defined_rollout_loop import UserDefinedRolloutLoop

        self.pipeline_config, self.is_val = pipeline_config, is_val
        self.reward_clusters, self.meta_info = reward_clusters, None
        self.reward_worker_iters = {domain: itertools.cycle(one.workers) for domain, one in reward_clusters.items()}
        ratio = 0 if is_val else pipeline_config.async_generation_ratio
        self.replay_buffer = ReplayBuffer(ratio, False, 0)
        self.router_manager = RouterManager(actor_cluster, pipeline_config.router_args, 1)
        self.running_tasks: dict[int, asyncio.Task] = {}
        self.udrl, self.request_counter = UserDefinedRolloutLoop(), 0

    async def initialize(self):
        await self.router_manager.initialize()
        self.router_client = RouterClient(InprocProxy(self.router_manager), {})
        self.router_manager.suspend()
        self.async_sending_task = asyncio.create_task(self.sending_request())

    async def pause_sampling(self):
        self.router_manager.suspend()
        for prompt_id in self.replay_buffer.gc():
            if task := self.running_tasks.get(prompt_id):
                task.cancel()
        await self.router_manager.abort_all()
        await self.router_manager.wait_complete()

    async def shutdown(self):
        self.replay_buffer.is_shut = True
        self.replay_buffer.changed.set()
        await self.router_manager.shutdown()
        await self.async_sending_task

    async def get_batch(self, data: DataProto, global_step: int, batch_size: int) -> DataProto:
        with attach_trace_context(data.meta_info), get_tracer("scheduler").start_as_current_span("get_batch"):
            inject_trace_context(data.meta_info)
            return await self._get_batch_impl(data, global_step, batch_size)

    async def _get_batch_impl(self, data: DataProto, global_step: int, batch_size: int) -> DataProto:
        self.meta_info = copy.deepcopy(data.meta_info)
        self.replay_buffer.advance_step(step=global_step, batch_size=batch_size)
        await self.router_manager.resume()
        samples = batch_size * self.meta_info["generation_config"]["num_return_sequences"]
        get_task = asyncio.create_task(self.replay_buffer.get_batch(expected_samples=samples, progress_bar=None))
        await asyncio.wait({get_task, self.async_sending_task}, return_when=asyncio.FIRST_COMPLETED)
        if self.async_sending_task.done():
            await self.async_sending_task
        batch = self.collect_items_as_batch(finished_items=await get_task)
        with get_tracer("scheduler").start_as_current_span("to_remote"):
            return batch

    def collect_items_as_batch(self, finished_items: list) -> DataProto:
        batch = DataProto.concat([item.data for item in finished_items])
        count = len({item.prompt_id for item in finished_items})
        metrics = {"scheduler/collect_query_count": count, "scheduler/score": batch.batch["scores"].mean().item()}
        batch.meta_info = {**batch.meta_info, "metrics": metrics}
        return batch

    async def sending_request(self):
        async with asyncio.TaskGroup() as tg:
            while True:
                try:
                    prompt_id = await self.replay_buffer.poll()
                except asyncio.CancelledError:
                    break
                task = tg.create_task(RolloutContext.process_new_prompt(scheduler=self, prompt_id=prompt_id))
                self.running_tasks[prompt_id] = task

    async def get_scheduler_state(self):
        return {"dataset_iter_count": self.replay_buffer.pid}


class RolloutContext:
    @staticmethod
    async def process_new_prompt(scheduler: DynamicSamplingScheduler, prompt_id: int):
        context = RolloutContext(scheduler=scheduler, prompt_id=prompt_id, meta_info=scheduler.meta_info)
        buffer, success = scheduler.replay_buffer, False
        with (
            attach_trace_context(scheduler.meta_info),
            get_tracer("scheduler").start_as_current_span("process_new_prompt", attributes={"prompt_id": prompt_id}),
        ):
            try:
                responses = await scheduler.udrl.process_new_prompt(context=context)
                if responses is None:
                    raise asyncio.CancelledError
                success = True
            finally:
                scheduler.running_tasks.pop(prompt_id, None)
                if success:
                    said = {"prompt_id": prompt_id, "domain": context.domain}
                    said["sampling_start_step"] = context.sampling_start_step
                    buffer.commit(prompt_id, [SimpleNamespace(data=one, **said) for one in responses])
                else:
                    buffer.abort(prompt_id)

    def __init__(self, scheduler: DynamicSamplingScheduler, prompt_id: int, meta_info):
        self._scheduler, self.prompt_id, self.meta_info = scheduler, prompt_id, copy.deepcopy(meta_info)
        self.pipeline_config, self.is_val = scheduler.pipeline_config, scheduler.is_val
        self.domain = self.sampling_start_step = None

    def get_request_data(self, meta_info):
        (self.domain,) = self._scheduler.reward_clusters
        is_late = self.prompt_id >= self.pipeline_config.rollout_batch_size
        said = {**meta_info, "hold": is_late and meta_info.get("collect_unfinished", False)}
        prompt = np.array([[1, 2, 3]])
        number = meta_info["generation_config"]["num_return_sequences"]
        return [DataProto({"input_ids": prompt}, {}, dict(said)) for _ in range(number)], self.domain

    @asynccontextmanager
    async def do_generate_and_reward(self, max_concurrency):
        self.sampling_start_step = await self._scheduler.replay_buffer.begin(prompt_id=self.prompt_id)
        yield

    async def generate(self, req: DataProto, domain: str) -> DataProto:
        self._scheduler.request_counter += 1
        request_id = f"{domain}_{self._scheduler.request_counter}"
        with get_tracer("scheduler").start_as_current_span("rollout.generate"):
            client = self._scheduler.router_client
            return await client.generate_request(req=req, request_id=request_id, uid=self.prompt_id)

    async def compute_rewards(self, req: DataProto, domain: str) -> DataProto:
        with get_tracer("scheduler").start_as_current_span("rollout.compute_rewards"):
            return await next(self._scheduler.reward_worker_iters[domain]).compute_rewards.remote(req)
