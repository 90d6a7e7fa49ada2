"""Sends weights to servers that share no process with a rank, through an actor: for verl's trainer ``separate_async``.

``actor_rollout_ref.rollout.checkpoint_engine.backend=cpu`` and ``.custom_backend_module=verl_cpu.mailbox`` choose it.
"""

import asyncio

import ray
import torch
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry


@ray.remote(num_cpus=0)
class Mailbox:
    """Holds the weights of one step until the next ones come."""

    def __init__(self):
        self.letters = {}
        self.changed = asyncio.Condition()

    async def put(self, step, weights):
        async with self.changed:
            self.letters = {step: weights}
            self.changed.notify_all()

    async def get(self, step):
        async with self.changed:
            await self.changed.wait_for(lambda: step in self.letters)
            return self.letters[step]


def mailbox():
    return Mailbox.options(name="verl_cpu_mailbox", get_if_exists=True, lifetime="detached").remote()


@CheckpointEngineRegistry.register("cpu")
class MailboxEngine(CheckpointEngine):
    def __init__(self, bucket_size, is_master=False, **_):
        self.is_master = is_master

    @classmethod
    def build_topology(cls, actor_wg_world_size, rollout_world_size, metadata):
        return {"rank": list(range(actor_wg_world_size))}, {"rank": list(range(rollout_world_size))}

    def prepare(self):
        return {}

    def init_process_group(self, rank, **_):
        self.rank = rank

    def finalize(self):
        pass

    async def send_weights(self, weights, global_steps=None):
        named = [
            (name, weight.detach().to("cpu", torch.float32).clone()) for name, weight in weights
        ]  # every rank gathers
        if self.rank == 0:
            await mailbox().put.remote(global_steps, named)
        return {"weight_sync/num_tensors": len(named)}

    async def receive_weights(self, global_steps=None):
        for name, weight in await mailbox().get.remote(global_steps):
            yield name, weight
