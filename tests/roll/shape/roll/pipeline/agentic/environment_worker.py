"""Workers with environments, each of which has a thread for the whole training."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from roll.distributed.executor.worker import Worker
from roll.distributed.scheduler.decorator import Dispatch, register
from roll.distributed.scheduler.protocol import DataProto
from roll.pipeline.agentic.env_manager.traj_env_manager import TrajEnvManager


class EnvironmentWorker(Worker):
    def __init__(self, worker_config):
        super().__init__(worker_config)
        self.env_managers: dict[int, Any] = {}

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, clear_cache=False)
    async def initialize(self, pipeline_config, generate_scheduler, output_queue, collator=None, mode: str = "train"):
        super().initialize(pipeline_config)
        for env_id, env_config in self.worker_config.env_configs[self.rank].items():
            self.env_managers[env_id] = TrajEnvManager(
                worker_config=self.worker_config, pipeline_config=pipeline_config, env_config=env_config,
                tokenizer=None, generate_scheduler=generate_scheduler, output_queue=output_queue, thread_lock=None,
                mode=mode,
            )  # fmt: skip

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, clear_cache=False)
    async def run_rollout_loop(self, seed):
        os.environ["WORKER_NAME"] = f"EnvironmentWorker_{self.rank}"
        loop, pool = asyncio.get_running_loop(), ThreadPoolExecutor(max_workers=len(self.env_managers))
        data = DataProto(meta_info={"seed": seed})
        await asyncio.gather(
            *[loop.run_in_executor(pool, manager.run_rollout_loop, data) for manager in self.env_managers.values()]
        )

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, clear_cache=False)
    async def update_step(self, global_step, trace_meta):
        for env_manager in self.env_managers.values():
            env_manager.update_step(global_step, trace_meta)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, clear_cache=False)
    async def stop(self):
        for env_manager in self.env_managers.values():
            env_manager.running = False
