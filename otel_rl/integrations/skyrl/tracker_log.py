"""What SkyRL logs, under canonical names where the meaning is the same; the rest as ``skyrl.`` and its own name.

Source: SkyRL 0.4.0, ``train/utils/tracking.py`` (``Tracking``, 33), ``train/trainer.py``,
``train/generators/utils.py`` (``get_rollout_metrics``), ``backends/skyrl_train/workers/worker_utils.py``
(``reduce_metrics``, 77). docs/skyrl.md says which numbers mean something else, and which mislead.
"""

from __future__ import annotations

from typing import Any, Final

from otel_rl import vocabulary
from otel_rl.guard import attempt
from otel_rl.hooks import Args, Hook, Kwargs, StageHook
from otel_rl.integrations.skyrl.ray_ppo import IN_LOOP
from otel_rl.metrics.naming import Series
from otel_rl.single_controller.driver import driver
from otel_rl.single_controller.tracked import name_numbers, numbers_of, record_numbers

ALWAYS: Final[dict[str, Series]] = {
    "policy/final_loss": (vocabulary.LOSS, ()),
    "policy/policy_loss": (vocabulary.LOSS_TERM, ((vocabulary.LOSS_TYPE, "policy"),)),
    "policy/grad_norm": (vocabulary.GRAD_NORM, ()),
    "policy/policy_lr": (vocabulary.LEARNING_RATE, ()),
    "eval/all/avg_score": (vocabulary.EVAL_REWARD, ()),
}
OF_ALL: Final[dict[str, Series]] = {"reward/avg_raw_reward": (vocabulary.REWARD_SCORE, ())}
"""Only if the samples that are logged are those that are trained."""
SINGLE_TURN: Final[dict[str, Series]] = {
    "generate/avg_num_tokens": (vocabulary.RESPONSE_LENGTH, ()),
    "generate/min_num_tokens": (vocabulary.RESPONSE_MIN, ()),
    "generate/max_num_tokens": (vocabulary.RESPONSE_MAX, ()),
}
"""The same; with several turns they count what the environment wrote, and with dynamic sampling they are of the last
prompts that were asked for, with groups that are left out."""
ADVANTAGES: Final[dict[str, Series]] = {"loss/avg_raw_advantages": (vocabulary.ADVANTAGE_MEAN, ())}
"""With several turns they are of the tokens of the environment, too."""
ENTROPY: Final[dict[str, Series]] = {"policy/policy_entropy": (vocabulary.ENTROPY, ())}
CLIPPED: Final[dict[str, Series]] = {"policy/loss_metrics/clip_ratio": (vocabulary.CLIP_FRACTION, ())}
KL_LOSS: Final[dict[str, Series]] = {"policy/policy_kl": (vocabulary.KL_REFERENCE, ())}
KL_REWARD: Final[dict[str, Series]] = {"loss/avg_kl": (vocabulary.KL_REFERENCE, ())}
RATIO_LOSSES: Final = frozenset(("regular", "dual_clip", "gspo"))
"""What others call a clip ratio is another share, or always 0."""
EVALUATIONS: Final = frozenset(("eval",))


def canonical_of(config: Any) -> dict[str, Series]:
    """Return what means the same with these settings of a training."""
    training, generator = config.trainer, config.generator
    algorithm = training.algorithm
    is_single = generator.max_turns == 1
    is_whole = not (training.fully_async.enabled and training.fully_async.sample_full_batch)
    found = dict(ALWAYS)
    found |= OF_ALL if is_whole else {}
    found |= SINGLE_TURN if is_whole and is_single and algorithm.dynamic_sampling.type is None else {}
    found |= ADVANTAGES if is_single else {}
    if algorithm.zero_variance_filter or generator.apply_overlong_filtering or generator.step_wise_trajectories:
        return found  # samples without a token that is trained are averaged in as 0
    is_estimate = algorithm.kl_estimator_type != "abs"
    found |= KL_REWARD if is_estimate and algorithm.use_kl_in_reward else {}
    if training.strategy == "megatron" or training.max_tokens_per_microbatch <= 0:  # FSDP averages empty ones in
        found |= ENTROPY
        found |= CLIPPED if algorithm.policy_loss_type in RATIO_LOSSES else {}
        found |= KL_LOSS if is_estimate and algorithm.use_kl_loss else {}
    return found


def _log(args: Args, kwargs: Kwargs) -> None:
    """Record the numbers that ``log(self, data, step, commit=False)`` gets."""
    canonical = attempt("read", "the settings of SkyRL", canonical_of, driver.trainer.cfg) or ALWAYS
    numbers = numbers_of(args[1], "SkyRL")
    record_numbers(name_numbers(numbers, vocabulary.SKYRL, canonical.get, EVALUATIONS))


HOOKS: tuple[Hook, ...] = (
    StageHook(target="skyrl.train.utils.tracking:Tracking.log", stage=vocabulary.LOG, before=_log, during=IN_LOOP),
)
