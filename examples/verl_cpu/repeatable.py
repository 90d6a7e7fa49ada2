"""Makes two trainings equal, bit for bit: ids are counted, samples are sorted, trajectories and critic have a seed.

verl draws ids and a critic's first weights at random, takes samples in the order in which they finish, and asks for
tokens without a seed.
"""

import functools
import itertools
import uuid
import zlib
from types import SimpleNamespace

import wrapt


def count_ids(module):
    numbers = itertools.count()
    module.uuid = SimpleNamespace(uuid4=lambda: uuid.UUID(int=next(numbers)))


def sort_samples(module):
    take = module.ReplayBuffer._materialize_batch

    @functools.wraps(take)
    def take_sorted(self, *args, **kwargs):
        batch = take(self, *args, **kwargs)
        pairs = sorted(zip(batch.keys, batch.tags, strict=True), key=lambda pair: pair[0])
        batch.keys[:], batch.tags[:] = [key for key, _ in pairs], [tag for _, tag in pairs]
        return batch

    module.ReplayBuffer._materialize_batch = take_sorted


def seed_trajectories(module):
    run = module.SingleTurnAgentLoop.run

    @functools.wraps(run)
    async def run_seeded(self, sampling_params, **kwargs):
        number = kwargs.get("session_id", kwargs.get("priority"))  # of the sample; the legacy trainer has no sessions
        seed = zlib.crc32(f"{kwargs.get('uid')} {number}".encode())
        return await run(self, {**sampling_params, "seed": seed}, **kwargs)

    module.SingleTurnAgentLoop.run = run_seeded


def seed_weights(module):
    import torch

    torch.manual_seed(0)


def patch():
    """Change verl's modules once they are imported."""
    for trainer in ("v1.trainer_base", "ray_trainer"):
        wrapt.register_post_import_hook(count_ids, f"verl.trainer.ppo.{trainer}")
    wrapt.register_post_import_hook(sort_samples, "verl.trainer.ppo.v1.replay_buffer")
    wrapt.register_post_import_hook(seed_trajectories, "verl.experimental.agent_loop.single_turn_agent_loop")
    wrapt.register_post_import_hook(seed_weights, "verl.workers.engine_workers")
