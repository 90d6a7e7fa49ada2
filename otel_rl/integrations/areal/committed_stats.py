"""What AReaL logs, under canonical names where the meaning is the same; the rest as ``areal.`` and its own name.

Source: AReaL 1.0.4, ``utils/stats_logger.py`` (``commit``, 135), ``trainer/ppo/actor.py`` (``_ppo_update``, 256;
``grpo_loss_fn``, 408). docs/areal.md says which numbers mean something else, and which mislead.
"""

from __future__ import annotations

from typing import Any, Final

from otel_rl import vocabulary
from otel_rl.guard import attempt
from otel_rl.hooks import Args, Hook, Kwargs, StageHook
from otel_rl.metrics.naming import Series
from otel_rl.single_controller.driver import driver
from otel_rl.single_controller.tracked import name_numbers, numbers_of, record_numbers

ACTOR, UPDATE = "ppo_actor", "ppo_actor/update"
ALWAYS: Final[dict[str, Series]] = {
    f"{ACTOR}/task_reward/avg": (vocabulary.REWARD_SCORE, ()),
    f"{ACTOR}/task_reward/max": (vocabulary.REWARD_MAX, ()),
    f"{ACTOR}/task_reward/min": (vocabulary.REWARD_MIN, ()),
    f"{ACTOR}/advantages/avg": (vocabulary.ADVANTAGE_MEAN, ()),
    f"{ACTOR}/advantages/max": (vocabulary.ADVANTAGE_MAX, ()),
    f"{ACTOR}/advantages/min": (vocabulary.ADVANTAGE_MIN, ()),
    f"{UPDATE}/lr": (vocabulary.LEARNING_RATE, ()),
    "eval-rollout/reward": (vocabulary.EVAL_REWARD, ()),
}
UNSPLIT: Final[dict[str, Series]] = {
    f"{UPDATE}/grad_norm": (vocabulary.GRAD_NORM, ()),
    f"{UPDATE}/entropy/avg": (vocabulary.ENTROPY, ()),
    f"{UPDATE}/clip_ratio/avg": (vocabulary.CLIP_FRACTION, ()),
    f"{UPDATE}/actor_loss/avg": (vocabulary.LOSS_TERM, ((vocabulary.LOSS_TYPE, "policy"),)),
}
"""Right where no tensor and no sequence is split among ranks."""
EVALUATIONS: Final = frozenset(("eval-rollout",))


def canonical_of(trainer: Any) -> dict[str, Series]:
    """Return what means the same in this training."""
    split = trainer.actor_alloc.parallel
    return ALWAYS | (UNSPLIT if split.tp_size == 1 and split.cp_size == 1 else {})


def _commit(args: Args, kwargs: Kwargs) -> None:
    """Record the numbers of ``commit(self, epoch, step, global_step, data)``; only rank 0 logs them."""
    logger, data = args[0], args[4]
    if driver.trainer is None or not hasattr(logger, "start_time"):
        return
    canonical = attempt("read", "the settings of AReaL", canonical_of, driver.trainer) or ALWAYS
    for values in [data] if isinstance(data, dict) else data:
        numbers = {key: one for key, one in numbers_of(values, "AReaL").items() if not key.endswith("__count")}
        record_numbers(name_numbers(numbers, vocabulary.AREAL, canonical.get, EVALUATIONS))


HOOKS: tuple[Hook, ...] = (
    StageHook(target="areal.utils.stats_logger:StatsLogger.commit", stage=vocabulary.LOG, before=_commit),
)
