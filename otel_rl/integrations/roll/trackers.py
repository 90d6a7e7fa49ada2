"""What ROLL tracks, under canonical names where the meaning is the same; the rest under ``roll.`` and its own name.

Source: ROLL 0.3.0, ``utils/tracking.py``. Whatever tracker is chosen goes on; ``track_with: otel`` chooses none but
this. docs/roll.md says what its own numbers mean, and which are wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from otel_rl import vocabulary
from otel_rl.hooks import Args, Attachment, CallbackHook, Hook, Kwargs, StageHook
from otel_rl.metrics.naming import Series
from otel_rl.process.hooked import hooking
from otel_rl.single_controller.tracked import extremes_at, lengths_at, name_numbers, numbers_of, record_numbers

TRACKING = "roll.utils.tracking"
NAME = "otel"
"""Name of the tracker that does nothing itself: its numbers are recorded as those of any other."""
CANONICAL: Final[dict[str, Series]] = {
    "critic/score/mean": (vocabulary.REWARD_SCORE, ()),
    **extremes_at("critic/score", vocabulary.REWARD_MAX, vocabulary.REWARD_MIN),
    "critic/advantages/mean": (vocabulary.ADVANTAGE_MEAN, ()),
    **extremes_at("critic/advantages", vocabulary.ADVANTAGE_MAX, vocabulary.ADVANTAGE_MIN),
    "actor/pg_loss": (vocabulary.LOSS_TERM, ((vocabulary.LOSS_TYPE, "policy"),)),
    "actor/total_loss": (vocabulary.LOSS, ()),
    "actor/kl_loss": (vocabulary.KL_REFERENCE, ()),
    "actor/approxkl": (vocabulary.KL_POLICY, ()),
    "actor/clipfrac": (vocabulary.CLIP_FRACTION, ()),
    "actor/lr": (vocabulary.LEARNING_RATE, ()),
    "actor_train/grad_norm": (vocabulary.GRAD_NORM, ()),
    "critic/entropy/mean": (vocabulary.ENTROPY, ()),
    "critic/loss": (vocabulary.LOSS_TERM, ((vocabulary.LOSS_TYPE, "value"),)),
}
for _part in ("token", "tokens"):  # RLVR writes it without the s
    CANONICAL.update(lengths_at(f"{_part}/response_length"))
for _mean in ("val_correct/all/mean", "val/score/mean"):  # RLVR's, and the agentic pipeline's
    CANONICAL[_mean] = vocabulary.EVAL_REWARD, ()
EVALUATIONS: Final = frozenset(("val", "val_correct"))
NESTED: Final = "scheduler/"
"""A name that has it twice holds another domain's number."""


def log_metrics(args: Args, kwargs: Kwargs) -> None:
    """Record the numbers that a tracker's ``log(self, values, step)`` gets."""
    values = kwargs["values"] if "values" in kwargs else args[1]
    numbers = numbers_of({_plain(key): value for key, value in values.items()}, "ROLL")
    own = {key: number for key, number in numbers.items() if key.count(NESTED) < 2}
    record_numbers(name_numbers(own, vocabulary.ROLL, CANONICAL.get, EVALUATIONS))


def _plain(key: Any) -> str:
    """Leave out by what a number was reduced (``@sum``), as ROLL's trackers do."""
    return str(key).rpartition("@")[0] or str(key)


def _follow_tracker(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Hook how the class of the tracker that was chosen logs."""
    hooking.follow(result)


def _offer(module: ModuleType) -> Callable[[], object]:
    """Let ``track_with: otel`` choose a tracker that does nothing itself."""
    kind = type("OtelTracker", (module.BaseTracker,), {"__init__": lambda self, config, **kwargs: None})
    if module.tracker_registry.setdefault(NAME, kind) is not kind:
        return lambda: None  # one of the program's own
    return lambda: module.tracker_registry.pop(NAME, None)


HOOKS: tuple[Hook, ...] = (
    CallbackHook(target="roll.pipeline.base_pipeline:create_tracker", after=_follow_tracker),
    StageHook(target=f"{TRACKING}:BaseTracker.log", stage=vocabulary.LOG, before=log_metrics),
)
ATTACHMENTS = (Attachment(TRACKING, _offer),)
