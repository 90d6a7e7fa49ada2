"""Ranks of slime and miles: what each does in a stage of the driver's.

Source: slime 0.3.1 (624b824a) ``slime/backends/megatron_utils/actor.py``, ``model.py`` (348, 512, 710), ``loss.py``
(704), ``slime/observability/timer.py`` (47; ``slime/utils/timer.py`` until the tag 0.3.1); miles 0.1.0 (31f1ca96)
``miles/backends/megatron_utils/actor.py``, ``model.py`` (252, 405, 674), ``miles/backends/fsdp_utils/actor.py``,
``miles/backends/training_utils/loss.py`` (28). Both bracket parts of their work by ``timer(name)``, or decorate methods
by it. Forwards, backwards and optimizer steps are Megatron's and torch's own.
"""

from __future__ import annotations

from typing import Any

from otel_rl import vocabulary
from otel_rl.hooks import Args, BlockHook, Hook, Kwargs, StageHook
from otel_rl.process.state import state
from otel_rl.records import Value
from otel_rl.single_controller.driver import Timers, stage_of
from otel_rl.single_controller.tables import sync_timers
from otel_rl.trace.stage import Stage, innermost

KIND = vocabulary.LOGPROB_KIND
TIMERS: Timers = {
    **sync_timers("sleep", "wake_up", "update_weights", "ref_model_update", "reconcile_adapters"),
    "data_preprocess": (vocabulary.SAMPLE_PROCESS, ()),
    "log_probs": (vocabulary.LOGPROB, ((KIND, "old"),)),
    "ref_log_probs": (vocabulary.LOGPROB, ((KIND, "ref"),)),
    "teacher_log_probs": (vocabulary.LOGPROB, ((KIND, "teacher"),)),
    "actor_train": (vocabulary.TRAIN, ((vocabulary.TRAIN_MODEL, "actor"),)),
    "save_model": (vocabulary.CHECKPOINT, ((vocabulary.CHECKPOINT_FORMAT, "megatron"),)),
    "export_hf": (vocabulary.CHECKPOINT, ((vocabulary.CHECKPOINT_FORMAT, "hf"),)),
}
"""``train`` holds several of these, and ``train_wait`` is between calls: that is recorded of any rank."""


def _timed(args: Args, kwargs: Kwargs) -> Stage | None:
    """Return the stage of a timer, ``context(self, name)``; one that is called inside another is part of it."""
    return stage_of(TIMERS, str(args[1]))


def _made(args: Args, kwargs: Kwargs) -> None:
    """Learn which model a rank has: ``init(self, args, role, ...)``."""
    state.identify(role=str(args[2]))


def _role(model: Any) -> str:
    return str(getattr(model[0], "role", "actor"))


def _value_stage(args: Args, kwargs: Kwargs) -> str | None:
    """Name a critic's forwards, ``forward_only(f, args, model, ...)``; those of log-probabilities have a timer."""
    return vocabulary.VALUE if getattr(args[0], "__name__", "") == "get_values" else None


def _train_stage(args: Args, kwargs: Kwargs) -> str | None:
    """Name the update of a model without a timer of its own, the critic's: ``train(rollout_id, model, ...)``."""
    around = innermost()
    return None if around is not None and around.name == vocabulary.TRAIN else vocabulary.TRAIN


def _say_model(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    return {vocabulary.TRAIN_MODEL: _role(args[1])}


def _rank_hooks(package: str, actors: tuple[str, ...], timers: tuple[str, ...], loss: str) -> tuple[Hook, ...]:
    model = f"{package}.backends.megatron_utils.model"
    return (
        *(
            StageHook(target=f"{actor}.init", stage=vocabulary.SETUP_MODEL, before=_made, optional=optional)
            for actor, optional in zip(actors, (False, True), strict=False)
        ),
        *(BlockHook(target=f"{timer}:Timer.context", begin=_timed, optional=len(timers) > 1) for timer in timers),
        StageHook(target=f"{model}:forward_only", stage=_value_stage),
        StageHook(target=f"{model}:train", stage=_train_stage, attributes=_say_model),
        StageHook(target=f"{model}:train_one_step", stage=vocabulary.MINI_BATCH),
        StageHook(target=f"{loss}:compute_advantages_and_returns", stage=vocabulary.ADVANTAGE),
    )


SLIME = _rank_hooks(
    "slime",
    ("slime.backends.megatron_utils.actor:MegatronTrainRayActor",),
    ("slime.observability.timer", "slime.utils.timer"),
    "slime.backends.megatron_utils.loss",
)
MILES = _rank_hooks(
    "miles",
    ("miles.backends.megatron_utils.actor:MegatronTrainRayActor", "miles.backends.fsdp_utils.actor:FSDPTrainRayActor"),
    ("miles.utils.timer",),
    "miles.backends.training_utils.loss",
)
ROLES = (("TrainRayActor", "actor"), ("RolloutManager", "rollout_manager"), ("SGLangEngine", "rollout"))
