"""The driver of slime and miles: ``train.py`` or ``train_async.py``, whose ``train`` no import brings.

Source: slime 0.3.1 (624b824a) ``train.py`` (11), ``train_async.py`` (12), ``slime/ray/placement_group.py`` (120, 186),
``slime/ray/actor_group.py``; miles 0.1.0 (31f1ca96) ``train.py`` (23), ``miles/ray/placement_group.py`` (108, 143),
``miles/ray/actor_group.py``, ``miles/ray/train/group.py``.

Step N is that of rollout N. It begins with the call that generates it, if all rollouts before it are trained; else,
where it was generated ahead, with the call that trains it. Such a rollout is a trace of its own.

The driver only submits and waits. So its stages are named after what it waits for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from otel_rl import vocabulary
from otel_rl.guard import attempt
from otel_rl.hooks import Args, CallbackHook, Hook, Kwargs, Memory, StageHook
from otel_rl.integrations.slime.checkout import version_of_miles, version_of_slime
from otel_rl.records import Value
from otel_rl.single_controller.driver import (
    GET,
    Timers,
    become_driver,
    begin_loop,
    begin_step,
    driver,
    end_loop,
    loop_failed,
    stage_of,
)
from otel_rl.single_controller.sample_groups import QUEUE, lags_of, link_groups
from otel_rl.single_controller.tables import sync_timers
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage, innermost

FORMAT = ((vocabulary.CHECKPOINT_FORMAT, "megatron"),)
WAITED: Timers = {
    "generate": (vocabulary.SAMPLE, ()),
    "eval": (vocabulary.EVALUATE, ()),
    "save": (vocabulary.CHECKPOINT, ()),
    **sync_timers("offload", "onload", "onload_weights", "onload_kv"),
}
"""Methods of the rollouts that the driver calls itself and waits for, and the stages of these waits."""


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
    """The open stage of the driver for what it waits for."""


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
    settings = attempt("read", "the settings of slime", _settings, config)
    begin_loop(config, str(config.save or ""), settings, (_await_ahead, _got))


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


def _called(args: Args, kwargs: Kwargs) -> None:
    """Look at a call of an actor: ``ActorMethod._remote(self, args, kwargs, ...)``."""
    given, named = (*args[1:], *(None, None))[:2]
    _submit(args[0], tuple(given or ()), named or {})


def _submit(method: Any, given: Args, named: Kwargs) -> None:
    """Wait for a call of the rollouts that no stage of the driver makes; the one that generates may begin a step."""
    name = str(method._method_name)
    if name not in WAITED:
        return
    _go_on()
    if name == "generate":
        number = int(given[0] if given else named["rollout_id"])
        if number != progress.trained:
            progress.ahead[number] = progress.synced
            return
        begin_step(number)
    is_awaited = named.get("hf_dir") is None  # a snapshot of miles is evaluated beside training
    if is_awaited and innermost() in (None, tracing.container):
        _wait(stage_of(WAITED, name))


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
    _go_on(error)
    if driver.trainer is not None:
        end_loop((), {}, None) if error is None else loop_failed((), {}, error)


# --- parts of a step --------------------------------------------------------------------------------------------------


def _submit_training(args: Args, kwargs: Kwargs) -> None:
    """Wait for the ranks: ``async_train(self, rollout_id, ...)`` returns at once."""
    if driver.trainer is not None:
        _begin_step(args, kwargs)
        _wait(Stage(vocabulary.TRAIN, _say_model(args, kwargs), coarse=True))


def _await_ahead(*_: object) -> None:
    """Wait for a rollout that was generated ahead, if the driver has nothing else to do."""
    if progress.ahead and progress.waiting is None and innermost() is tracing.container:
        _wait(Stage(vocabulary.IDLE, dict((QUEUE,)), coarse=True))


def _wait(stage: Stage | None) -> None:
    """Open a stage of the driver for what it has submitted, until that is there or the driver does something else."""
    progress.waiting = stage
    if stage is not None:
        stage.open()


def _go_on(error: BaseException | None = None) -> None:
    """End the wait of the driver."""
    stage, progress.waiting = progress.waiting, None
    if stage is not None:
        stage.__exit__(None if error is None else type(error), error, None)


def _next(*_: object) -> None:
    """Let the driver do something else."""
    _go_on()


def _got(error: BaseException | None) -> None:
    """End the wait with ``ray.get``; other threads may call it, too."""
    if innermost() is progress.waiting:
        _go_on(error)


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
            StageHook(target=f"{group}.{name}", stage=stage, attributes=attributes, before=_next)
            for name, (stage, attributes) in sync_timers("onload", "offload", "clear_memory").items()
        ),
        StageHook(
            target=f"{group}.update_weights",
            stage=vocabulary.SYNC,
            attributes=((vocabulary.SYNC_OPERATION, "update_weights"),),
            before=_next,
            after=_synced,
        ),
        StageHook(target=f"{group}.save_model", stage=vocabulary.CHECKPOINT, attributes=FORMAT, before=_next),
    )


SLIME_GROUP = "slime.ray.actor_group:RayTrainGroup"
MILES_GROUPS = "miles.ray.actor_group:RayTrainGroup", "miles.ray.train.group:RayTrainGroup"
CALLS: tuple[Hook, ...] = (
    CallbackHook(target="ray.actor:ActorMethod._remote", before=_called, during=(driver, "trainer")),
    GET,
)
"""What the driver submits and waits for; both integrations have the same two."""
SLIME: tuple[Hook, ...] = (
    *_driver_hooks("slime", _made_slime, "slime.observability.logging_utils", "slime.utils.logging_utils"),
    *CALLS,
    CallbackHook(target=f"{SLIME_GROUP}.async_train", before=_submit_training),
    *_group_hooks(SLIME_GROUP),
)
MILES: tuple[Hook, ...] = (
    *_driver_hooks("miles", _made_miles, "miles.utils.tracking_utils.tracking"),
    *CALLS,
    *(
        StageHook(
            target=f"{group}.train",
            stage=vocabulary.TRAIN,
            before=_begin_step,
            attributes=_say_model,
            after=_await_ahead,
        )
        for group in MILES_GROUPS
    ),
    *(hook for group in MILES_GROUPS for hook in _group_hooks(group)),
)
