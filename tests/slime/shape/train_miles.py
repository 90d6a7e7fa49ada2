"""``train.py`` of miles, which is a program."""

from typing import Any

from miles.ray.placement_group import create_placement_groups, create_rollout_manager, create_training_models
from miles.utils.tracking_utils.tracking import finish_tracking


async def run(args: Any) -> None:
    pgs = create_placement_groups(args)
    manager, _ = create_rollout_manager(args, pgs)
    model, _ = await create_training_models(args, pgs, manager)
    await model.update_weights()
    for rollout_id in range(args.start_rollout_id, args.num_rollout):
        data = await manager.generate.remote(rollout_id)
        await model.train(rollout_id, data)
        if rollout_id == args.broken_step:
            raise OSError("theirs")
        await model.clear_memory()
        await model.update_weights(rollout_id=rollout_id)
        await manager.eval.remote(rollout_id)


async def run_async(args: Any) -> None:
    pgs = create_placement_groups(args)
    manager, _ = create_rollout_manager(args, pgs)
    model, _ = await create_training_models(args, pgs, manager)
    await model.update_weights()
    future = manager.generate.remote(args.start_rollout_id)
    for rollout_id in range(args.start_rollout_id, args.num_rollout):
        if future is not None:
            data = await future
        if rollout_id + 1 < args.num_rollout:
            future = manager.generate.remote(rollout_id + 1)
        await model.train(rollout_id, data)
        data = None if future is None else await future
        future = None
        await model.update_weights(rollout_id=rollout_id)
        manager.eval.remote(rollout_id, hf_dir="snapshot").close()


async def train(args: Any) -> None:
    try:
        await (run_async if args.is_async else run)(args)
    finally:
        finish_tracking()
