"""``train.py`` and ``train_async.py`` of slime, which are programs."""

import json
import shutil
import sys
import tempfile
from typing import Any

from slime.observability.logging_utils import finish_tracking
from slime.ray.placement_group import create_placement_groups, create_rollout_manager, create_training_models

from tests.slime import world


def train(args: Any) -> None:
    pgs = create_placement_groups(args)
    manager, _ = create_rollout_manager(args, pgs)
    model, _ = create_training_models(args, pgs, manager)
    model.update_weights()
    for rollout_id in range(args.start_rollout_id, args.num_rollout):
        data = world.get(manager.generate.remote(rollout_id))
        world.get(model.async_train(rollout_id, data))
        model.save_model(rollout_id)
        model.clear_memory()
        model.update_weights()
        world.get(manager.eval.remote(rollout_id))
    finish_tracking(args)


def train_async(args: Any) -> None:
    pgs = create_placement_groups(args)
    manager, _ = create_rollout_manager(args, pgs)
    model, _ = create_training_models(args, pgs, manager)
    model.update_weights()
    future = manager.generate.remote(args.start_rollout_id)
    for rollout_id in range(args.start_rollout_id, args.num_rollout):
        if future is not None:
            data = world.get(future)
        if rollout_id + 1 < args.num_rollout:
            future = manager.generate.remote(rollout_id + 1)
        world.get(model.async_train(rollout_id, data))
        data = None if future is None else world.get(future)
        future = None
        model.update_weights()
    finish_tracking(args)


def main() -> None:
    """Train on Ray, whose actors are processes."""
    import ray

    world.get = ray.get
    world.actor = lambda kind, *args: ray.remote(num_cpus=0)(kind).remote(*args)
    folder = tempfile.mkdtemp(prefix="ray")  # a short one: sockets lie below it
    ray.init(num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", _temp_dir=folder)
    try:
        train(world.config(**json.loads(sys.argv[1])))
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
