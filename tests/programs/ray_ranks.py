"""A single controller on Ray: its driver holds the steps, two actors are the ranks of a world and only get calls.

At the end ``ray.kill`` ends the ranks.
"""

from __future__ import annotations

import shutil
import tempfile
from time import sleep
from typing import Any

import ray

import otel_rl

STEPS = 3


@ray.remote(num_cpus=0)
class Worker:
    """One rank. One method is asynchronous, so all of its calls run in an event loop."""

    def __init__(self) -> None:
        with otel_rl.stage("load"):
            sleep(0.02)

    def logprob(self) -> None:
        """Work for 20 ms."""
        with otel_rl.stage("logprob"):
            sleep(0.02)

    def update(self) -> None:
        """Work for 30 ms."""
        with otel_rl.stage("train"):
            sleep(0.03)

    async def release(self) -> None:
        """Make it an asynchronous actor."""


@ray.remote(num_cpus=0)
class Generator:
    """Serves whatever step."""

    def generate(self) -> None:
        """Work for 50 ms."""
        with otel_rl.stage("sample"):
            sleep(0.05)


def main() -> None:
    """Train."""
    otel_rl.instrument()
    folder = tempfile.mkdtemp(prefix="ray")  # a short one: sockets lie below it
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=True, _node_ip_address="127.0.0.1", _temp_dir=folder)
    try:
        train()
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def train() -> None:
    """Make all steps."""
    places = [{"env_vars": {"RANK": str(rank), "WORLD_SIZE": "2"}} for rank in (0, 1)]
    workers: list[Any] = [Worker.options(runtime_env=place).remote() for place in places]
    generator = Generator.remote()
    ray.get([actor.__ray_ready__.remote() for actor in (*workers, generator)])
    for number in range(STEPS):
        with otel_rl.step(number):
            with otel_rl.stage("rollout"):
                ray.get(generator.generate.remote())
            for method in ("logprob", "update"):
                with otel_rl.stage(method):
                    ray.get([getattr(worker, method).remote() for worker in workers])
                    sleep(0.01)
    for worker in workers:
        ray.kill(worker)


if __name__ == "__main__":
    main()
