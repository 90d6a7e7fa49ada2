"""What a job of verl trains and how it is set, read from its configuration."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from otel_rl import vocabulary
from otel_rl.records import Value


def trained(config: Any) -> dict[str, str]:
    """Return algorithm and model of a job; a model's folder is named by its last part only."""
    path = str(config.actor_rollout_ref.model.path).rstrip("/")
    return {"algorithm": str(config.algorithm.adv_estimator).upper(), "model_name": PurePath(path).name}


def settings_of(trainer: Any) -> dict[str, Value]:
    """Return the settings that a report shows; a rank is one of those that train."""
    config, actor, rollout = (
        trainer.config,
        trainer.config.actor_rollout_ref.actor,
        trainer.config.actor_rollout_ref.rollout,
    )
    prompts, group = int(config.data.train_batch_size), int(rollout.n)
    ranks = int(config.trainer.nnodes) * int(config.trainer.n_gpus_per_node)
    poll_s = getattr(getattr(trainer, "replay_buffer", None), "poll_interval", None)
    return {
        **({} if poll_s is None else {vocabulary.SETTINGS_POLL: float(poll_s)}),
        vocabulary.SETTINGS_LEARNING_RATE: float(actor.optim.lr),
        vocabulary.SETTINGS_SAMPLES: prompts * group // ranks,
        vocabulary.SETTINGS_GROUP: group,
        vocabulary.SETTINGS_LIMIT: int(rollout.response_length),
        vocabulary.SETTINGS_UPDATES: prompts / int(actor.ppo_mini_batch_size) * int(actor.ppo_epochs),
        vocabulary.SETTINGS_STEPS: int(trainer.total_training_steps),
    }
