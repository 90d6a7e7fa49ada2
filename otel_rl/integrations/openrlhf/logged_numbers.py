"""What OpenRLHF logs, under canonical names where the meaning is the same; the rest as ``openrlhf.`` and its own name.

Source: OpenRLHF 0.11.2, ``trainer/ppo_trainer.py`` (``_compute_rollout_stats``, 431), ``trainer/ray/ppo_actor.py``
(``ppo_train``, 153). docs/openrlhf.md says which numbers mean something else, and which are wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from otel_rl import vocabulary
from otel_rl.hooks import Args, Hook, Kwargs, StageHook
from otel_rl.metrics.naming import Series
from otel_rl.single_controller.tracked import EVALUATION, name_numbers, numbers_of, record_numbers

LOGGERS = "openrlhf.utils.logging_utils"
CANONICAL: Final[dict[str, Series]] = {
    "rollout/reward_mean": (vocabulary.REWARD_SCORE, ()),
    "rollout/response_length_mean": (vocabulary.RESPONSE_LENGTH, ()),
    "rollout/truncated_rate": (vocabulary.RESPONSE_CLIPPED, ()),
    "kl": (vocabulary.KL_REFERENCE, ()),
    "ppo_kl": (vocabulary.KL_POLICY, ()),
    "ppo_clip_ratio": (vocabulary.CLIP_FRACTION, ()),
    "actor_lr": (vocabulary.LEARNING_RATE, ()),
    "actor_grad_norm": (vocabulary.GRAD_NORM, ()),
}


def canonical_of(trainer: Any) -> dict[str, Series]:
    """Return what means the same in this training.

    Without a reference model OpenRLHF logs a KL of 0; a KL that is part of the loss is weighted as that is. A length
    of several turns counts what the environment wrote between them.
    """
    others = set()
    if trainer.reference_model_group is None or trainer.args.algo.kl.use_loss:
        others.add("kl")
    if trainer.args.train.agent_func_path:
        others.add("rollout/response_length_mean")
    return {key: series for key, series in CANONICAL.items() if key not in others}


def log_metrics(args: Args, kwargs: Kwargs) -> None:
    """Record the numbers of a step: ``save_logs_and_checkpoints(self, global_step, logs_dict, client_states)``."""
    trainer, logs = args[0], args[2] if len(args) > 2 else None
    numbers = numbers_of(logs or {}, "OpenRLHF")
    record_numbers(name_numbers(numbers, vocabulary.OPENRLHF, canonical_of(trainer).get, ()))


def record_evaluation(metrics: Mapping[str, Any]) -> None:
    """Record the numbers of an evaluation; the reward of all of it is known if it has one data set."""
    rewards = [key for key in metrics if key.endswith("_pass1")]
    canonical = {rewards[0]: (vocabulary.EVAL_REWARD, ())} if len(rewards) == 1 else {}
    named = name_numbers(numbers_of(metrics, "OpenRLHF"), vocabulary.OPENRLHF, canonical.get, ())
    record_numbers(((name, (*labels, EVALUATION)), number) for (name, labels), number in named)


HOOKS: tuple[Hook, ...] = tuple(
    StageHook(target=f"{LOGGERS}:{kind}.{method}", stage=vocabulary.LOG)
    for kind in ("WandbLogger", "TensorboardLogger")
    for method in ("log_train", "log_eval")
)
