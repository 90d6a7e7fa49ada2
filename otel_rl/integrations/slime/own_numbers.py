"""What slime and miles log, under canonical names where the meaning is the same; the rest below their own prefix.

Source: slime 0.3.1 (624b824a) ``slime/observability/logging_utils.py`` (45; ``slime/utils/logging_utils.py`` until the
tag 0.3.1), ``rollout_metrics.py``, ``train_metric_utils.py``, ``slime/backends/megatron_utils/model.py`` (830) and
``loss.py`` (1142); miles 0.1.0 (31f1ca96) ``miles/utils/tracking_utils/tracking.py`` (46),
``miles/backends/training_utils/loss_hub/losses.py`` (365). docs/slime.md says which mean something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from otel_rl import vocabulary
from otel_rl.hooks import Args, Hook, Kwargs, StageHook
from otel_rl.metrics.naming import Series
from otel_rl.single_controller.tracked import lengths_at, name_numbers, numbers_of, record_numbers

CANONICAL: Final[dict[str, Series]] = {
    "rollout/raw_reward": (vocabulary.REWARD_SCORE, ()),
    "rollout/truncated_ratio": (vocabulary.RESPONSE_CLIPPED, ()),
    **lengths_at("rollout/response_len"),
    "train/loss": (vocabulary.LOSS, ()),
    "train/entropy_loss": (vocabulary.ENTROPY, ()),
    "train/pg_clipfrac": (vocabulary.CLIP_FRACTION, ()),
    "train/ppo_kl": (vocabulary.KL_POLICY, ()),
    "train/kl_loss": (vocabulary.KL_REFERENCE, ()),
    "train/grad_norm": (vocabulary.GRAD_NORM, ()),
    "train/lr-pg_0": (vocabulary.LEARNING_RATE, ()),
}
"""``entropy_loss`` and ``kl_loss`` are means of the entropy and of the KL itself, without their coefficients."""
STEPS: Final = frozenset(("train/step", "rollout/step", "eval/step"))
"""Numbers of steps, which are no measurements."""


def has_rewards(config: Any) -> bool:
    """Return whether samples have rewards: those of supervised fine-tuning are all 0."""
    return str(config.loss_type) != "sft_loss"


def _canonical(config: Any, metrics: Mapping[str, Any], package: str) -> dict[str, Series]:
    """Return what means the same in this call.

    With GSPO the KL is one of whole sequences. miles logs an entropy of 0 where it computes none. The reward of all of
    an evaluation is known if it has one data set.
    """
    found = dict(CANONICAL)
    if not has_rewards(config):
        del found["rollout/raw_reward"]
    if config.advantage_estimator == "gspo":
        del found["train/ppo_kl"]
    if package == "miles" and not config.entropy_coef:
        del found["train/entropy_loss"]
    evaluated = [key for key in metrics if key.startswith("eval/") and f"{key}-truncated_ratio" in metrics]
    return found | ({evaluated[0]: (vocabulary.EVAL_REWARD, ())} if len(evaluated) == 1 else {})


def _log(package: str, args: Args) -> None:
    config, metrics = args[:2]
    numbers = {key: number for key, number in numbers_of(metrics, package).items() if key not in STEPS}
    prefix = vocabulary.SLIME if package == "slime" else vocabulary.MILES
    record_numbers(name_numbers(numbers, prefix, _canonical(config, metrics, package).get, {"eval"}))


def _log_slime(args: Args, kwargs: Kwargs) -> None:
    """Record the numbers of ``log(args, metrics, step_key)``."""
    _log("slime", args)


def _log_miles(args: Args, kwargs: Kwargs) -> None:
    _log("miles", args)


SLIME: tuple[Hook, ...] = tuple(
    StageHook(target=f"slime.{room}.logging_utils:log", stage=vocabulary.LOG, before=_log_slime, optional=True)
    for room in ("observability", "utils")
)
MILES: tuple[Hook, ...] = (
    StageHook(target="miles.utils.tracking_utils.tracking:log", stage=vocabulary.LOG, before=_log_miles),
)
