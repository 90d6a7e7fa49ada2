"""A job on Ray that never mentions a carrier: its driver holds steps, two actors train, one generates, a task scores.

The driver records; nobody else asks for it. At the end ``ray.kill`` ends an actor right behind its answer.
"""

from __future__ import annotations

import asyncio
import functools
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

import otel_rl
from otel_rl.integrations.ray import announce, calling, missing

STEPS = 3
SAMPLES = 4


def registered(method: Any) -> Any:
    """Wrap a method as frameworks do that register what ranks may be asked for."""

    @functools.wraps(method)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    return inner


@ray.remote(num_cpus=0)
class Trainer:
    """Works off one call after the other."""

    def __init__(self, size: int) -> None:
        with otel_rl.stage("load", size=size):
            pass

    @registered
    def update(self, batch: list[int], *, step: int) -> int:
        """Train on a batch."""
        with otel_rl.stage("train", step=step), otel_rl.stage("forward", step=step):
            return sum(batch)

    def evaluate(self, step: int) -> int:
        """Be hooked by the class's name, where the program records nothing."""
        return step

    def fail(self) -> None:
        """Raise what is not ours."""
        raise ValueError("theirs")

    def count(self, number: int) -> Any:
        """Give one item after the other."""
        yield 0
        yield number

    @staticmethod
    def double(x: int) -> int:
        """Be called without the actor."""
        return 2 * x

    @classmethod
    def named(cls, x: int) -> str:
        """Be called with the class."""
        return f"{cls.__name__} {x}"


@ray.remote(num_cpus=0, max_concurrency=8)
class Generator:
    """Works off many calls at once."""

    async def generate(self, sample: int, *, step: int) -> int:
        """Make a sample, and wait for the others."""
        with otel_rl.stage("sample", step=step, sample=sample):
            await asyncio.sleep(0.02)
        return sample


@ray.remote(num_cpus=0)
class Storage:
    """Passes on what it gets, and records nothing."""

    def keep(self, samples: list[int]) -> list[int]:
        """Give back what was put."""
        return samples


@ray.remote(num_cpus=0)
def score(sample: int, *more: int, step: int, **options: int) -> int:
    """Score a sample in whatever process is free."""
    with otel_rl.stage("reward", step=step, sample=sample):
        return sample + sum(more) + sum(options.values())


@ray.remote(num_cpus=0)
class Runner:
    """Holds the steps in place of the program, as verl's does."""

    def run(self) -> None:
        """Train, and have nobody wait behind the last step."""
        loop([Trainer.remote(2), Trainer.remote(2)], Generator.remote())


def main() -> None:
    """Train."""
    if "--instrument" in sys.argv:
        otel_rl.instrument()
    if "--elsewhere" in sys.argv:
        announce.AUTOLOAD = calling.AUTOLOAD = missing.AUTOLOAD = "/nowhere/autoload"  # type: ignore[attr-defined]
    with cluster():
        if "--runner" in sys.argv:
            runner = Runner.remote()
            ray.get(runner.run.remote())
        else:
            drive()


@contextmanager
def cluster() -> Iterator[None]:
    """Use the cluster that RAY_ADDRESS names, else one of our own."""
    folder = tempfile.mkdtemp(prefix="ray")  # a short one: sockets lie below it
    own = {"num_cpus": 2, "include_dashboard": False, "_node_ip_address": "127.0.0.1", "_temp_dir": folder}
    ray.init(**({} if "--attached" in sys.argv else own))
    try:
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def drive() -> None:
    """Hold the steps."""
    trainers: list[Any] = [Trainer.remote(2), Trainer.options(name="trainer_7:0").remote(2)]
    loop(trainers, Generator.remote())
    check_kinds(trainers[0])
    kill_behind_answers()


def loop(trainers: list[Any], generator: Any) -> None:
    """Make all steps."""
    storage = Storage.remote()
    for step in range(STEPS):
        with otel_rl.step(step):
            train(step, trainers, generator, storage)


def train(step: int, trainers: list[Any], generator: Any, storage: Any) -> None:
    """Make one step."""
    with otel_rl.stage("rollout", step=step):
        samples = ray.get([generator.generate.remote(sample, step=step) for sample in range(SAMPLES)])
        samples = ray.get(storage.keep.remote(samples))
    with otel_rl.stage("score", step=step):
        assert [3, 4, 5, 6] == ray.get([score.remote(sample, 1, step=step, x=2) for sample in samples])
    with otel_rl.stage("learn", step=step):
        assert [6, 6] == ray.get([trainer.update.remote(samples, step=step) for trainer in trainers])
        assert step == ray.get(trainers[0].evaluate.remote(step))


def kill_behind_answers() -> None:
    """End actors as soon as a call has returned."""
    trainer, generator = Trainer.remote(2), Generator.remote()
    ray.get([actor.__ray_ready__.remote() for actor in (trainer, generator)])
    with otel_rl.step(STEPS):
        ray.get(generator.generate.remote(0, step=STEPS))
        ray.kill(generator)
        ray.get(trainer.update.remote([1], step=STEPS))
        ray.kill(trainer)


def check_kinds(trainer: Any) -> None:
    """Call methods of every kind."""
    assert 10 == ray.get(trainer.double.remote(5))
    assert "Trainer 5" == ray.get(trainer.named.remote(5))
    assert [0, 3] == [ray.get(one) for one in trainer.count.options(num_returns="streaming").remote(3)]
    try:
        ray.get(trainer.fail.remote())
    except ValueError as error:
        assert "theirs" in str(error)


if __name__ == "__main__":
    main()
    sys.exit(3 if "--fail" in sys.argv else 0)
