"""Trains in the shape of ROLL. Usage: ``train.py rlvr|agentic [JSON of settings]``; at the end Ray kills all actors."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from types import SimpleNamespace
from typing import Any

import ray


def environments(name: str, groups: int) -> SimpleNamespace:
    """Make the settings of a worker with two environments a group."""
    configs = [{"tag": "game", "group_id": group, "env_id": 2 * group + at} for group in range(groups) for at in (0, 1)]
    return SimpleNamespace(
        name=name, world_size=1, group_size=2, env_configs={0: {one["env_id"]: one for one in configs}}
    )


def settings(**changes: Any) -> SimpleNamespace:
    """Make the settings of a training of two ranks, two groups of two samples a step."""
    training = SimpleNamespace(per_device_train_batch_size=1, gradient_accumulation_steps=2, learning_rate=0.1)
    model = SimpleNamespace(model_name_or_path="/models/tiny")
    ranks = SimpleNamespace(world_size=2, training_args=training, model_args=model)
    one = SimpleNamespace(world_size=1, training_args=training, model_args=model)
    server = SimpleNamespace(
        world_size=1,
        model_args=model,
        strategy_args=SimpleNamespace(strategy_name="vllm"),
        generating_args=SimpleNamespace(num_return_sequences=2, max_new_tokens=changes.pop("max_new_tokens", 2)),
    )
    config = {
        "pretrain": "/models/tiny", "adv_estimator": "grpo", "output_dir": "output", "track_with": "stdout",
        "rollout_batch_size": 2, "ppo_epochs": 1, "max_steps": 2, "save_steps": 9, "eval_steps": 2,
        "async_generation_ratio": 0,
        "partial_gpu_mode": False, "filtered": (), "reward_raises": False,
        "router_args": SimpleNamespace(router_name="PromptAffinityRouter"),
        "actor_train": ranks, "critic": one, "reference": one, "actor_infer": server, "reward": one,
        "train_env_manager": environments("train_env", 2), "val_env_manager": environments("val_env", 1),
    }  # fmt: skip
    return SimpleNamespace(**{**config, **changes, "async_pipeline": changes.get("async_generation_ratio", 0) > 0})


def main() -> None:
    """Train."""
    kind, *more = sys.argv[1:]
    changes = json.loads(more[0]) if more else {}
    changes["filtered"] = tuple(tuple(one) if isinstance(one, list) else one for one in changes.get("filtered", ()))
    folder = tempfile.mkdtemp(prefix="ray")  # a short one: sockets lie below it
    ray.init(
        num_cpus=2, include_dashboard=False, namespace="roll", _node_ip_address="127.0.0.1", _temp_dir=folder,
        runtime_env={"env_vars": {"SHAPE": "1"}},
    )  # fmt: skip
    try:
        if kind == "rlvr":
            from roll.pipeline.rlvr.rlvr_pipeline import RLVRPipeline as Pipeline
        else:
            from roll.pipeline.agentic.agentic_pipeline import AgenticPipeline as Pipeline  # type: ignore[assignment]
        Pipeline(pipeline_config=settings(**changes)).run()
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
