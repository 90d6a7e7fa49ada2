"""Schedulers of agentic pipelines: a queue of groups of trajectories, which environments fill."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import ray
from roll.distributed.executor.cluster import Cluster
from roll.distributed.scheduler.protocol import DataProto
from roll.distributed.scheduler.router import RouterManager
from roll.pipeline.agentic.environment_worker import EnvironmentWorker
from roll.utils.telemetry import attach_trace_context, get_tracer, inject_trace_context


@dataclass
class GroupData:
    group_id: int
    episode_id: int
    create_step: int
    rollouts: list[Any] = field(default_factory=list)
    running_rollouts: int = 0


class GroupQueue:
    def __init__(
        self,
        group_id,
        progress_bar,
        group_size,
        group_size_redundancy,
        max_traj_per_env,
        async_generation_ratio,
        group_filter,
        env_monitor=None,
    ):
        self.group_id, self.group_size, self.group_filter = group_id, group_size, group_filter
        self.async_generation_ratio = async_generation_ratio
        self.group_filter_count = self.next_episode_id = 0
        self.current_step: int | None = None
        self.groups: dict[int, GroupData] = {}
        self.quit = False
        self.changed = asyncio.Event()

    def advance_group(self, create_step):
        self.groups[self.next_episode_id] = GroupData(self.group_id, self.next_episode_id, create_step)
        self.next_episode_id += 1

    def advance_step(self, step):
        if self.current_step is None:
            for _ in range(self.async_generation_ratio):
                self.advance_group(step)
        else:
            old = [at for at, one in self.groups.items() if step - one.create_step > self.async_generation_ratio]
            for episode_id in old:
                self.groups.pop(episode_id)
        self.current_step = step
        self.advance_group(step)
        self.changed.set()

    async def get_episode_id(self, env_id: int | None = None) -> int | None:
        while not self.quit:
            for episode_id, group in self.groups.items():
                if group.running_rollouts < self.group_size:
                    group.running_rollouts += 1
                    return episode_id
            self.changed.clear()
            await self.changed.wait()
        return None

    def put(self, episode_id, start_step, rollout):
        if episode_id not in self.groups:
            return
        group = self.groups[episode_id]
        group.rollouts.append(rollout)
        if len(group.rollouts) == self.group_size and self.group_filter(self.group_id, episode_id):
            self.group_filter_count += 1
            self.groups.pop(episode_id)
            self.advance_group(create_step=self.current_step)
        self.changed.set()

    async def get(self) -> GroupData:
        while not self.groups or len(self.groups[min(self.groups)].rollouts) < self.group_size:
            self.changed.clear()
            await self.changed.wait()
        return self.groups.pop(min(self.groups))


@ray.remote
class GroupQueueManager:
    def __init__(self, config, env_manager_config, mode):
        is_train = mode == "train"
        ratio = config.async_generation_ratio if is_train else 0
        rejected = config.filtered if is_train else ()
        groups = {one["group_id"] for envs in env_manager_config.env_configs.values() for one in envs.values()}
        said = {"progress_bar": None, "group_size": env_manager_config.group_size, "group_size_redundancy": 0}
        said |= {"max_traj_per_env": 1, "async_generation_ratio": ratio, "group_filter": lambda *key: key in rejected}
        self.group_queue = {group_id: GroupQueue(group_id=group_id, **said) for group_id in sorted(groups)}

    def advance_step(self, step):
        for queue in self.group_queue.values():
            queue.advance_step(step)

    async def get_episode_id(self, group_id, env_id=None):
        return await self.group_queue[group_id].get_episode_id(env_id)

    def shutdown(self):
        for queue in self.group_queue.values():
            queue.quit = True
            queue.groups.clear()
            queue.changed.set()

    def put(self, group_id, episode_id, start_step, rollout, env_id=None):
        self.group_queue[group_id].put(episode_id, start_step, rollout)

    async def get_batch(self, batch_size, current_step):
        taken = await asyncio.gather(*[asyncio.create_task(queue.get()) for queue in self.group_queue.values()])
        return [rollout for group in taken for rollout in group.rollouts]


class RolloutScheduler:
    def __init__(self, config, env_manager_config, resource_manager, infer_cluster, mode, collator=None):
        self.config, self.mode = config, mode
        name = env_manager_config.name
        named = {"namespace": "roll", "num_cpus": 0, "max_concurrency": 100}
        queue: Any = GroupQueueManager
        self.env_output_queue = queue.options(name=f"GroupQueueManager-{mode}", **named).remote(
            config, env_manager_config, mode
        )
        router = ray.remote(RouterManager).options(name=f"RouterManager-{name}-{mode}", **named)
        args = SimpleNamespace(router_name="EnvAffinityRouter")
        self.router_manager = router.remote(actor_cluster=infer_cluster, router_args=args, num_gpus_per_node=1)
        self.es_manager: Any = Cluster(name, EnvironmentWorker, resource_manager, env_manager_config)
        self.rollout_task: Any = None

    async def initialize(self):
        await self.router_manager.initialize.remote()
        said = {"generate_scheduler": self.router_manager, "output_queue": self.env_output_queue, "mode": self.mode}
        await asyncio.gather(*self.es_manager.initialize(pipeline_config=self.config, **said, blocking=False))

    async def shutdown(self):
        if self.rollout_task is not None:
            await asyncio.gather(*self.es_manager.stop(blocking=False))
            await self.env_output_queue.shutdown.remote()
            await self.router_manager.shutdown.remote()
            await self.rollout_task

    async def suspend(self):
        await self.router_manager.suspend.remote()
        await self.router_manager.abort_all.remote()
        await self.router_manager.wait_complete.remote()

    async def _run_rollout_loop(self, seed):
        await asyncio.gather(*self.es_manager.run_rollout_loop(seed, blocking=False))

    async def get_batch(self, data: DataProto, batch_size):
        with attach_trace_context(data.meta_info), get_tracer("scheduler").start_as_current_span("get_batch"):
            return await self._get_batch_impl(data, batch_size)

    async def _get_batch_impl(self, data: DataProto, batch_size):
        global_step = data.meta_info["global_step"]
        if self.rollout_task is None:
            self.rollout_task = asyncio.create_task(self._run_rollout_loop(7))
        await asyncio.gather(*self.es_manager.update_step(global_step, inject_trace_context({}), blocking=False))
        await self.env_output_queue.advance_step.remote(global_step)
        await self.router_manager.resume.remote()
        get_task = asyncio.ensure_future(self.env_output_queue.get_batch.remote(batch_size, global_step))
        await asyncio.wait({get_task, self.rollout_task}, return_when=asyncio.FIRST_COMPLETED)
        if self.rollout_task.done():
            await self.rollout_task
        return DataProto.concat(await get_task)

    async def shrink_sampler(self, target_gpus: list[int]) -> dict[str, Any]:
        return {"shrink_duration_ms": 0.0}

    async def expand_sampler(self, target_gpus: list[int], skip_load: bool = False) -> dict[str, Any]:
        return {"expand_duration_ms": 0.0}
