"""The driver of slime and miles: ``train.py`` or ``train_async.py``, whose ``train`` no import brings.

Source: slime 0.3.1 (624b824a) ``train.py`` (11), ``train_async.py`` (12), ``slime/ray/placement_group.py`` (120, 186),
``slime/ray/actor_group.py``; miles 0.1.0 (31f1ca96) ``train.py`` (23), ``miles/ray/placement_group.py`` (108, 143),
``miles/ray/actor_group.py``, ``miles/ray/train/group.py``.

Step N is that of rollout N. It begins with the call that generates it, if all rollouts before it are trained; else,
where it was generated ahead, with the call that trains it. Such a rollout is a trace of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from otel_rl import vocabulary
from otel_rl.guard import attempt
from otel_rl.hooks import Args, CallbackHook, Hook, Kwargs, Memory, StageHook
from otel_rl.integrations.slime.checkout import version_of_miles, version_of_slime
from otel_rl.records import Value
from otel_rl.single_controller.driver import become_driver, begin_loop, begin_step, driver, end_loop, loop_failed
from otel_rl.single_controller.sample_groups import lags_of, link_groups
from otel_rl.single_controller.tables import sync_timers
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage, innermost

WAITED = frozenset(("generate", "eval", "save", "offload", "onload", "onload_weights", "onload_kv"))
"""Methods of the rollouts that the driver calls itself, and waits for."""
FORMAT = ((vocabulary.CHECKPOINT_FORMAT, "megatron"),)


@dataclass(eq=False)
class TrainProgress(Memory):
    """How far the training has come; rollouts are counted from 0."""

    trained: int = 0
    """So many rollouts were trained, or their training began."""
    synced: int = 0
    """So many were trained when the engines got their weights last."""
    ahead: dict[int, int] = field(default_factory=dict)
    """Rollouts that were generated ahead, and ``synced`` when they began."""
    waiting: Stage | None = None
    """The open wait of the driver."""


progress = TrainProgress.keep("progress")


def rollout_key(number: int) -> str:
    """Name a rollout that is a trace of its own."""
    return f"rollout-{number}"


# --- loop and steps ---------------------------------------------------------------------------------------------------


def _made_slime(args: Args, kwargs: Kwargs) -> None:
    """Learn what is trained: ``create_placement_groups(args)`` is the first that ``train`` calls."""
    become_driver("slime", version_of_slime() or "", attempt("read", "what slime trains", _job, args[0]))


def _made_miles(args: Args, kwargs: Kwargs) -> None:
    become_driver("miles", version_of_miles() or "", attempt("read", "what miles trains", _job, args[0]))


def _job(config: Any) -> dict[str, str]:
    name = PurePath(str(config.hf_checkpoint).rstrip("/")).name
    return {"algorithm": str(config.advantage_estimator).upper(), "model_name": name}


def _begin_loop(args: Args, kwargs: Kwargs, result: object) -> None:
    """Begin the loop: ``create_training_models(args, pgs, rollout_manager)`` has learned where it goes on."""
    config = args[0]
    progress.trained = progress.synced = int(config.start_rollout_id or 0)
    begin_loop(config, str(config.save or ""), attempt("read", "the settings of slime", _settings, config))


def _settings(config: Any) -> dict[str, Value]:
    """Return the settings that a report shows; a rank is one of those that train the actor."""
    group = int(config.n_samples_per_prompt)
    samples = int(config.rollout_batch_size) * group
    ranks = max(1, int(config.actor_num_nodes) * int(config.actor_num_gpus_per_node))
    known: dict[str, Any] = {
        vocabulary.SETTINGS_LEARNING_RATE: config.lr,
        vocabulary.SETTINGS_LIMIT: config.rollout_max_response_len,
        vocabulary.SETTINGS_STEPS: config.num_rollout,
        vocabulary.SETTINGS_TEMPERATURE: config.rollout_temperature,
        vocabulary.SETTINGS_KL: config.kl_loss_coef if config.use_kl_loss else config.kl_coef or None,
        vocabulary.SETTINGS_GRADIENT: config.clip_grad or None,
        vocabulary.SETTINGS_UPDATES: samples / config.global_batch_size if config.global_batch_size else None,
    }
    return {
        vocabulary.SETTINGS_SAMPLES: samples // ranks,
        vocabulary.SETTINGS_GROUP: group,
        **{name: value for name, value in known.items() if value is not None},
    }


def _called_slime(args: Args, kwargs: Kwargs) -> None:
    """Look at a call of an actor: ``ActorMethod._remote(self, args, kwargs, ...)``."""
    _submit(args[0], (args[1] if len(args) > 1 else kwargs.get("args")) or ())


def _called_miles(args: Args, kwargs: Kwargs) -> None:
    """Look at a call of an actor: ``ActorMethod.remote(self, *args, **kwargs)``; two integrations hook no function."""
    _submit(args[0], args[1:])


def _submit(method: Any, given: Sequence[Any]) -> None:
    """Begin a step with the call that generates its rollout."""
    _go_on()
    if method._method_name == "generate" and given:
        number = int(given[0])
        if number == progress.trained:
            begin_step(number)
        else:
            progress.ahead[number] = progress.synced


def _begin_step(args: Args, kwargs: Kwargs) -> None:
    """Train a rollout, ``train(self, rollout_id, ...)``: its step begins here if it was generated ahead.

    With a critic the rollout comes twice.
    """
    _go_on()
    number = int(args[1])
    if driver.trainer is None or number < progress.trained:
        return
    begin_step(number)
    progress.trained = number + 1
    synced = progress.ahead.pop(number, None)
    if synced is not None:
        lag = None if _is_mixed(driver.trainer) else number - synced
        link_groups([(rollout_key(number), lag)])
        if lag is not None and tracing.container is not None:
            samples = int(driver.trainer.rollout_batch_size) * int(driver.trainer.n_samples_per_prompt)
            for key, value in lags_of([lag] * samples, newest=number).items():
                tracing.container.set_attribute(key, value)


def _is_mixed(config: Any) -> bool:
    """Return whether a rollout has samples that began before it: how old these are is not known here."""
    return bool(config.partial_rollout) or "fully_async" in str(config.rollout_function_path)


def _synced(args: Args, kwargs: Kwargs, result: object) -> None:
    progress.synced = progress.trained


def _ended(args: Args, kwargs: Kwargs) -> None:
    """End the loop: ``finish_tracking`` is the last that a training calls, in miles also where it fails."""
    error = sys.exc_info()[1]
    _go_on()
    if driver.trainer is not None:
        end_loop((), {}, None) if error is None else loop_failed((), {}, error)


# --- parts of a step --------------------------------------------------------------------------------------------------


def _submitted(args: Args, kwargs: Kwargs, result: object) -> None:
    """Wait for a call of the rollouts that no stage of the driver makes."""
    if args[0]._method_name in WAITED and innermost() in (None, tracing.container):
        _wait()


def _training(args: Args, kwargs: Kwargs, result: object) -> None:
    """Wait for the ranks: ``async_train`` returns at once."""
    if driver.trainer is not None:
        _wait()


def _wait() -> None:
    """Open the wait for what was submitted, until the driver does something else: ``ray.get`` or ``await``."""
    progress.waiting = Stage(vocabulary.IDLE, {vocabulary.IDLE_REASON: "workers"}, coarse=True)
    progress.waiting.open()


def _go_on(*_: object) -> None:
    """End the wait of the driver."""
    stage, progress.waiting = progress.waiting, None
    if stage is not None:
        stage.__exit__(None, None, None)


def _say_model(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    return {vocabulary.TRAIN_MODEL: str(getattr(args[0], "role", "actor"))}


def _driver_hooks(package: str, made: Callable[[Args, Kwargs], None], *trackers: str) -> tuple[Hook, ...]:
    placing = f"{package}.ray.placement_group"
    return (
        CallbackHook(target=f"{placing}:create_placement_groups", before=made),
        CallbackHook(target=f"{placing}:create_training_models", after=_begin_loop),
        *(
            CallbackHook(target=f"{tracker}:finish_tracking", before=_ended, optional=len(trackers) > 1)
            for tracker in trackers
        ),
    )


def _group_hooks(group: str) -> tuple[Hook, ...]:
    """Return the hooks of the ranks of one model, as the driver calls them."""
    return (
        *(
            StageHook(target=f"{group}.{name}", stage=stage, attributes=attributes, before=_go_on)
            for name, (stage, attributes) in sync_timers("onload", "offload", "clear_memory").items()
        ),
        StageHook(
            target=f"{group}.update_weights",
            stage=vocabulary.SYNC,
            attributes=((vocabulary.SYNC_OPERATION, "update_weights"),),
            before=_go_on,
            after=_synced,
        ),
        StageHook(target=f"{group}.save_model", stage=vocabulary.CHECKPOINT, attributes=FORMAT, before=_go_on),
    )


SLIME_GROUP = "slime.ray.actor_group:RayTrainGroup"
MILES_GROUPS = "miles.ray.actor_group:RayTrainGroup", "miles.ray.train.group:RayTrainGroup"
SLIME: tuple[Hook, ...] = (
    *_driver_hooks("slime", _made_slime, "slime.observability.logging_utils", "slime.utils.logging_utils"),
    CallbackHook(
        target="ray.actor:ActorMethod._remote", before=_called_slime, after=_submitted, during=(driver, "trainer")
    ),
    CallbackHook(target=f"{SLIME_GROUP}.async_train", before=_begin_step, after=_training),
    *_group_hooks(SLIME_GROUP),
)
MILES: tuple[Hook, ...] = (
    *_driver_hooks("miles", _made_miles, "miles.utils.tracking_utils.tracking"),
    CallbackHook(
        target="ray.actor:ActorMethod.remote", before=_called_miles, after=_submitted, during=(driver, "trainer")
    ),
    *(
        StageHook(target=f"{group}.train", stage=vocabulary.TRAIN, before=_begin_step, attributes=_say_model)
        for group in MILES_GROUPS
    ),
    *(hook for group in MILES_GROUPS for hook in _group_hooks(group)),
)
