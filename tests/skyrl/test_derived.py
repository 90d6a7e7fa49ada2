"""Trainers that are derived from SkyRL's: what they override is recorded as what it stands for."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any

import pytest

from otel_rl import vocabulary as v
from tests.fixtures import Recording
from tests.skyrl.test_training import points
from tests.skyrl.training import drawn, make, skyrl

__all__ = ["skyrl"]


@pytest.fixture
def trainers(skyrl: Recording) -> Any:
    """The module of SkyRL's trainer, which is recorded."""
    return import_module("skyrl.train.trainer")


@pytest.mark.parametrize("calls_super", [False, True])
def test_advantages(skyrl: Recording, trainers: Any, monkeypatch: pytest.MonkeyPatch, calls_super: bool) -> None:
    """Inside the timer of the same stage, too: samples and their rewards are recorded once."""

    class Derived(trainers.RayPPOTrainer):  # type: ignore[misc]
        def compute_advantages_and_returns(self, data: Any) -> Any:
            if calls_super:
                return super().compute_advantages_and_returns(data)
            data["advantages"] = data["rewards"].sum(1, keepdim=True) * data["response_mask"]
            return data

    monkeypatch.setattr(trainers, "RayPPOTrainer", Derived)
    asyncio.run(make([["a"], ["b"]]).train())
    run = skyrl.stop()
    assert {v.REWARD_ZERO_STD: [1.0, 1.0]} == points(run, v.REWARD_ZERO_STD)
    samples = [log.attributes[v.SAMPLE_ID] for log in run.logs() if log.event_name == v.SAMPLE_RECORD]
    assert ["0-a_0", "0-a_1", "0-b_0", "0-b_1"] == sorted(samples)


def test_a_task_that_samples(skyrl: Recording, trainers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """SkyRL's example of a trainer that is one step ahead does, and uses timers by ``async with``."""
    timer, prepared = trainers.Timer, trainers.prepare_generator_input

    class Ahead(trainers.RayPPOTrainer):  # type: ignore[misc]
        async def train(self) -> None:
            self.global_step, self.synced = 1, asyncio.Event()
            buffer: asyncio.Queue[Any] = asyncio.Queue(maxsize=1)
            task = asyncio.create_task(self.sample(buffer))
            for uid in "ab":
                with timer("step"):
                    batch = self.convert_to_training_input(await buffer.get(), [uid, uid])
                    self.train_critic_and_policy(batch)
                    async with timer("sync_weights"):
                        await self.dispatch.save_weights_for_sampler()
                    self.synced.set()
                self.global_step += 1
            await task

        async def sample(self, buffer: asyncio.Queue[Any]) -> None:
            for uid in "ab":
                async with timer("generate"):
                    output = await self.generate(prepared([uid], 2, "train", self.global_step))
                await buffer.put(output)
                await self.synced.wait()
                self.synced.clear()

    monkeypatch.setattr(trainers, "RayPPOTrainer", Ahead)
    asyncio.run(make([]).train())
    shown = "rl.sample |", "rl.sample.trajectory", "rl.sync", "rl.train |"
    steps = [
        [line.split(" | (")[0].strip() for line in step if line.strip().startswith(shown)]
        for step in drawn(skyrl.stop(), v.LOOP)
    ]
    assert [
        [
            "rl.sample | train",
            *(f"rl.sample.trajectory | train | 0-{uid} | 0-{uid}_{number} | 3 | 4 | 1" for number in range(2)),
            *("rl.train | critic", "rl.train | actor", "rl.sync | sync_weights"),
        ]
        for uid in "ab"
    ] == steps
