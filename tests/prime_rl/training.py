"""The programs of prime-rl, on its shape: what its trainer's ``train`` and its orchestrator do."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.prime_rl import world
from tests.prime_rl.world import batch, episode, part

SHAPE = Path(__file__).parent / "shape"


def train(start: int = 1, steps: int = 2, model: Callable[[object], None] | None = None) -> None:
    """Train some steps, as ``prime_rl.trainer.rl.train`` does, which is a program."""
    part("utils.process").set_proc_title("Trainer")
    part("utils.utils").clean_exit(_train)(start, steps, model)


def _train(start: int, steps: int, model: Callable[[object], None] | None) -> None:
    config, monitors = world.trainer_config(steps), part("monitors")
    asyncio.run(monitors.setup(output_dir="outputs", run_config=config))
    part("trainer.model").setup_model(config.model, None)
    loader = part("trainer.rl.data").DataLoader(config.output_dir, start, 1, None)
    broadcast = part("transports.weights.nccl").NCCLWeightBroadcast()
    broadcast.broadcast_weights(None, step=start - 1)
    for step in range(start, start + steps):
        loader.wait_for_batch()
        for _ in loader.get_batch():
            part("trainer.model").forward(model, None, None, seq_lens=None)
        part("trainer.utils").clip_grad_norm_(None, None, 1.0, False)
        broadcast.broadcast_weights(None, step=step)
        part("trainer.ckpt").CheckpointManager().save(step, None, [], None, None)
        numbers = {"optim/lr": 1e-6, "optim/grad_norm": 2.0, "entropy/all/mean": 1.5, "loss/mean": 0.25, "step": step}
        asyncio.run(monitors.log(numbers, step=step))


async def set_up_orchestrator(evaluations: int = 0) -> None:
    """Begin as each orchestrator does."""
    part("utils.process").set_proc_title("Orchestrator")
    names = [f"env-{number}" for number in range(evaluations)]
    config = world.orchestrator_config()
    await part("monitors").setup(output_dir="outputs", run_config=config, eval_env_names=names)


async def orchestrate(error: str = "") -> None:
    """Make two groups at once, drop a third one, ship a batch of the first two, and update the engines."""
    await set_up_orchestrator()
    dispatcher = part("orchestrator.dispatcher").Dispatcher(part("orchestrator.envs").Env(error))
    groups = {"a": world.group(), "b": world.group(version=1), "c": world.group()}
    for key in ("a", "b", "a", "b", "c"):
        await dispatcher.schedule_group_episode(key, groups[key])
    for meta, task in dispatcher.tasks[:4]:
        await dispatcher.emit_episode(meta, groups[meta.group_id], await task)
    await dispatcher.drop_group("c", reason="stale")
    admitted = [episode("b", 1, 1.0)]
    sink = part("orchestrator.train_sink").TrainSink(lambda group: group is admitted)
    for group in (admitted, [episode("d", 0, 0.0)], [episode("e", 0, 0.0, "RewardError")]):
        sink._admit(group)
    shipping = part("orchestrator.orchestrator").Orchestrator(Namespace(step=2))
    await part("utils.client").InferencePool().update_weights(None, lora_name=None, step=1)
    cohort = [episode("a", 0, 1.0), episode("a", 0, 0.0), episode("b", 1, 1.0)]
    stale = [episode("f", 0, 0.0), episode("f", 0, 0.0)]
    equal = [episode("g", 0, 1.0), episode("g", 0, 1.0)]
    failed = [episode("h", 0, 0.0), episode("h", 0, 1.0, "RewardError")]
    await shipping.finalize_train_batch(batch([], []))
    arrived = [*cohort, *stale, *equal, *failed]
    await shipping.finalize_train_batch(batch(cohort, arrived, {one.id for one in stale}))


async def ship(steps: int, **plan: Any) -> None:
    """Run the orchestrator with what ``_ship`` takes."""
    await part("utils.utils").clean_exit(_ship)(steps, **plan)


async def _ship(
    steps: int,
    *,
    error: Callable[[int], Any] = lambda step: "",
    plan: Callable[[Any, int], Any] | None = None,
    failed: list[object] | None = None,
) -> None:
    """Make two groups of two episodes for each of some steps and ship them, as fast as the trainer takes them.

    Args:
        steps: so many.
        error: of the episodes of a step: the type of one that is returned with them, or an exception that they raise.
        plan: ``(dispatcher, step)``: what is done with groups besides.
        failed: what episodes raised is appended to it.
    """
    await set_up_orchestrator()
    environment = part("orchestrator.envs").Env()
    dispatcher = part("orchestrator.dispatcher").Dispatcher(environment)
    shipping = part("orchestrator.orchestrator").Orchestrator(Namespace(step=1))
    sink = part("orchestrator.train_sink").TrainSink(None)
    world.tick(3)  # until the first weights are there
    for step in range(1, steps + 1):
        environment.error = error(step)
        groups = {f"{step}-{place}": world.group(version=step - 1) for place in range(2)}
        for key, group in groups.items():
            for _ in range(group.target_episodes):
                await dispatcher.schedule_group_episode(key, group)
        if plan is not None:
            await plan(dispatcher, step)
        arrived = []
        for meta, task in dispatcher.tasks:
            done = (await asyncio.gather(task, return_exceptions=True))[0]
            if not isinstance(done, BaseException):
                done.traces[0].reward = float(len(arrived) % 2)
                await dispatcher.emit_episode(meta, groups.get(meta.group_id, world.group()), done)
                arrived.append(done)
            elif failed is not None:
                failed.append(done)
        dispatcher.tasks.clear()
        world.tick(2)
        for key in {one.group.id: None for one in arrived}:
            sink._admit([one for one in arrived if one.group.id == key])
        await shipping.finalize_train_batch(batch([one for one in arrived if one.ok], arrived))
