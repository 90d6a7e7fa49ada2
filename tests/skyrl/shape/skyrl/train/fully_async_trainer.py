"""The asynchronous trainer: tasks generate groups while it trains, in threads."""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from skyrl.train.generators.base import prepare_generator_input
from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils.utils import Timer


@dataclass
class GeneratedOutputGroup:
    generator_output: dict
    uid: str
    global_step_when_scheduled: int


class FullyAsyncRayPPOTrainer(RayPPOTrainer):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.max_staleness_steps = 1
        super().__init__(*args, **kwargs)
        self._staleness_manager = SimpleNamespace(_stat=SimpleNamespace(running=1))

    async def train(self):
        self.epoch = 0
        with Timer("sync_weights_to_inference_engines"):
            await self.dispatch.save_weights_for_sampler()
        self.global_step = 1
        self.prompts = iter(self.train_dataset)
        buffer: asyncio.Queue = asyncio.Queue()
        self.is_ahead, self.is_synced = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(self._run_generate_for_a_group_loop(buffer))
        for _ in range(2):
            with Timer("step", self.all_timings):
                kept, _, _ = await self._collect_generation_mini_batch(buffer, asyncio.Event())
                ahead = asyncio.create_task(self.is_ahead.wait())  # of what the staleness allows, with these weights
                await asyncio.wait({task, ahead}, return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    task.result()
                with Timer("convert_to_training_input", self.all_timings):
                    output = {
                        key: [row for one in kept for row in one.generator_output[key]]
                        for key in ("response_ids", "rewards", "loss_masks")
                    }
                    uids = [one.uid for one in kept for _ in one.generator_output["response_ids"]]
                    batch = await asyncio.to_thread(self.convert_to_training_input, output, uids)
                batch = await asyncio.to_thread(self.prepare_batch, batch)
                with Timer("train_critic_and_policy", self.all_timings):
                    await asyncio.to_thread(self.train_critic_and_policy, batch)
                with Timer("sync_weights", self.all_timings):
                    await self.dispatch.save_weights_for_sampler()
            self.is_synced.set()
            await asyncio.sleep(0.01)  # it evaluates, and saves
            self.tracker.log(self.all_metrics, step=self.global_step, commit=False)
            self.global_step += 1

    async def _collect_generation_mini_batch(self, generation_output_group_buffer: Any, all_generators_done: Any):
        kept: list = []
        dropped: list = []
        with Timer("wait_for_generation_buffer", self.all_timings):
            while len(kept) < 2:
                group = await generation_output_group_buffer.get()
                (dropped if group.uid == "dropped" else kept).append(group)
        return kept, dropped, False

    async def _run_generate_for_a_group_loop(self, generation_output_group_buffer: Any) -> None:
        try:
            for uid in self.prompts:
                if uid == "late":
                    self.is_ahead.set()
                    await self.is_synced.wait()
                given = prepare_generator_input(
                    [uid], self.cfg.generator.n_samples_per_prompt, "train", self.global_step
                )
                step = self.global_step
                output = await self.generator.generate(given, disable_tqdm=True)
                generation_output_group_buffer.put_nowait(GeneratedOutputGroup(output, uid, step))
        except asyncio.CancelledError:
            return
        except Exception:  # noqa: BLE001  as SkyRL does
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
