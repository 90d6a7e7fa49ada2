"""Trains five steps in the shape of SkyRL, with actors of Ray for ranks of the policy; the second one is slow."""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
import tempfile
import time
from typing import Any

import ray
from skyrl.backends.skyrl_train.workers.worker import FSDPCriticWorkerBase, FSDPPolicyWorkerBase, FSDPRefWorkerBase

from tests.skyrl.training import make


class PolicyWorker(FSDPPolicyWorkerBase):
    """A rank with long micro-batches."""

    def _forward_backward_micro(self, *args: Any, **kwargs: Any) -> Any:
        time.sleep(0.1 if os.environ["RANK"] == "1" else 0.02)
        return super()._forward_backward_micro(*args, **kwargs)


class Ranks:
    """The ranks of a model: a call is one of all of them."""

    def __init__(self, kind: type, count: int) -> None:
        actor: Any = ray.remote(num_cpus=0)(kind)
        self.actors = [actor.remote(count, rank) for rank in range(count)]

    def __getattr__(self, name: str) -> Any:
        return functools.partial(self.call, name)

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call all ranks, and return what the first one does."""
        return ray.get([getattr(actor, name).remote(*args, **kwargs) for actor in self.actors])[0]

    async def broadcast_to_inference_engines(self, *args: Any) -> None:
        """Hand the weights over."""
        self.call("broadcast_to_inference_engines", *args)


def main() -> None:
    """Train."""
    folder = tempfile.mkdtemp(prefix="ray")  # a short one: sockets lie below it
    ray.init(num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", _temp_dir=folder)
    try:
        ranks = {"policy": Ranks(PolicyWorker, 2), "ref": FSDPRefWorkerBase(), "critic": FSDPCriticWorkerBase()}
        asyncio.run(make([[uid] for uid in "abcde"], workers=ranks).train())
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
