"""A training of NeMo-RL's shape in processes of its own: the driver, and two ranks, of which one may be slow.

From the root of the repository: ``python -m tests.nemo_rl.job --slow 1``
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

import otel_rl
from otel_rl.process.carrier import Carrier
from otel_rl.process.hooked import hooking
from otel_rl.process.state import state
from tests.nemo_rl import world

SHAPE = Path(__file__).parent / "shape"
RANKS = 2
MS = 0.004
"""Seconds that a millisecond of the shape takes."""


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.nemo_rl.job")
    parser.add_argument("--slow", type=int, default=None, help="the rank that takes three times as long")
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    sys.path.insert(0, str(SHAPE))
    fork = multiprocessing.get_context("fork")
    pipes = [fork.Pipe() for _ in range(RANKS)]
    ranks = [
        fork.Process(target=be_rank, args=(rank, pipe, 3 if rank == options.slow else 1))
        for rank, (_, pipe) in enumerate(pipes)
    ]
    for rank in ranks:
        rank.start()
    drive(options.steps, Ranks([pipe for pipe, _ in pipes]))
    for pipe, _ in pipes:
        pipe.send(None)
    for rank in ranks:
        rank.join()


def drive(steps: int, ranks: Ranks) -> None:
    """Be ``examples/run_grpo.py``."""
    otel_rl.instrument(["nemo_rl"])
    from nemo_rl.algorithms.grpo import grpo_train, setup
    from nemo_rl.models.policy.lm_policy import Policy
    from nemo_rl.utils.logger import Logger

    world.CLOCK[0] = lambda ms: time.sleep(ms * MS)
    config, policy, saved = world.config(), Policy(), {"total_steps": 0, "current_step": 0}
    config.grpo["max_num_steps"] = steps
    policy.rank = ranks
    setup(config, None, None, None)
    grpo_train(policy, [], [], None, None, None, [], None, Logger(), None, saved, config)
    otel_rl.uninstrument()


class Ranks:
    """Stands for the group of actors: each call goes to all ranks, and waits for all."""

    def __init__(self, pipes: list[Any]) -> None:
        self.pipes = pipes

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> None:
            for pipe in self.pipes:
                pipe.send((name, args, kwargs, Carrier.current()))
            for pipe in self.pipes:
                pipe.recv()

        return call


def be_rank(rank: int, pipe: Any, slowness: int) -> None:
    """Be an actor: serve calls until there are no more."""
    os.environ["OTEL_RL_PROCESS_KIND"] = "worker"
    otel_rl.instrument(["nemo_rl"])
    from nemo_rl.models.policy.workers.dtensor_policy_worker_v2 import DTensorPolicyWorkerV2Impl

    state.identify(role="actor", rank=rank, world_size=RANKS)
    hooking.arrived(DTensorPolicyWorkerV2Impl)
    world.CLOCK[0] = lambda ms: time.sleep(ms * MS * slowness)
    worker = DTensorPolicyWorkerV2Impl()
    for name, args, kwargs, carrier in iter(pipe.recv, None):
        with carrier.use():
            pipe.send(getattr(worker, name)(*args, **kwargs))
    otel_rl.uninstrument()


if __name__ == "__main__":
    main()
