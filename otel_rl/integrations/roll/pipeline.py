"""Pipelines of ROLL: the driver of a job, which holds its steps and calls everybody else.

Source: ROLL 0.3.0, ``pipeline/base_pipeline.py``, ``pipeline/rlvr/rlvr_pipeline.py`` (``run``),
``pipeline/agentic/agentic_pipeline.py`` (``run``). They bracket the parts of a step by ``with Timer(name=...)`` of
codetiming, by which they become stages here. Steps begin at 0. The agentic pipeline logs and RLVR's next iteration
begins after the timer of the step: what lies between two such timers still belongs to the first.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from otel_rl import vocabulary
from otel_rl.guard import attempt
from otel_rl.hooks import Args, CallbackHook, Hook, Kwargs, StageHook
from otel_rl.integrations.roll import offload
from otel_rl.integrations.roll.shape import version_of_tree
from otel_rl.process.hooked import hooking
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
from otel_rl.single_controller.tables import sync_timers
from otel_rl.single_controller.timers import enter_timer, leave_timer
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import innermost

BASE = "roll.pipeline.base_pipeline:BasePipeline"
TIMER = "codetiming._timer:Timer"
STEPS = frozenset(("step_total", "pipeline_step_total"))
"""Timers of whole steps."""
KIND, OPERATION = vocabulary.LOGPROB_KIND, vocabulary.SYNC_OPERATION
OLD, REFERENCE = (KIND, "old"), (KIND, "ref")
TIMERS: Timers = {
    "step_stop_server": (vocabulary.SYNC, ((OPERATION, "pause_sampling"),)),
    "step_model_update": (vocabulary.SYNC, ((OPERATION, "model_update"),)),
    **sync_timers("model_update", "shrink_sampler"),
    "val_step": (vocabulary.EVALUATE, ()),
    "step_generate": (vocabulary.SAMPLE, ()),
    "rollout": (vocabulary.SAMPLE, ()),
    "cal_ref_log_probs": (vocabulary.LOGPROB, (REFERENCE,)),
    "cal_old_log_probs_values": (vocabulary.LOGPROB, (OLD,)),
    "get_sample_level_mask": (vocabulary.SAMPLE_PROCESS, ()),
    "cal_response_level_mask": (vocabulary.SAMPLE_PROCESS, ()),
    "reward_postprocess": (vocabulary.REWARD, ()),
    "cal_response_norm_rewards": (vocabulary.REWARD, ()),
    "get_token_reward": (vocabulary.REWARD, ()),
    "cal_token_reward": (vocabulary.REWARD, ()),
    "compute_advantage": (vocabulary.ADVANTAGE, ()),
    "step_train": (vocabulary.TRAIN, ()),
    "train_timer": (vocabulary.TRAIN, ()),
    "compute_data_metrics": (vocabulary.LOG, ()),
    "log": (vocabulary.LOG, ()),
}
"""RLVR's and the agentic pipeline's; ``val`` is in a thread, and is the stage of the method of its name."""


# --- loop and steps ---------------------------------------------------------------------------------------------------


def _made(args: Args, kwargs: Kwargs) -> None:
    """Learn what is trained, before anything of the set-up is recorded."""
    config = kwargs.get("pipeline_config") or (args[1] if len(args) > 1 else None)
    job = attempt("read", "what ROLL trains", _job, config)
    become_driver("roll", version_of_tree() or "", job)
    hooking.follow(args[0])


def _job(config: Any) -> dict[str, str]:
    path = str(config.actor_train.model_args.model_name_or_path or config.pretrain).rstrip("/")
    return {"algorithm": str(config.adv_estimator).upper(), "model_name": PurePath(path).name}


def _begin_loop(args: Args, kwargs: Kwargs) -> None:
    (pipeline,) = args
    settings = attempt("read", "the settings of ROLL", _settings, pipeline.pipeline_config)
    begin_loop(pipeline, str(pipeline.pipeline_config.output_dir), settings, (_wait_stage, None))


def _settings(config: Any) -> dict[str, Value]:
    """Return the settings that a report shows; a rank is one of those that train."""
    train = config.actor_train
    arguments = train.training_args
    generating = config.actor_infer.generating_args
    samples = int(config.rollout_batch_size) * int(generating.num_return_sequences)
    updated = int(arguments.per_device_train_batch_size) * int(arguments.gradient_accumulation_steps)
    ranks = max(1, int(train.world_size))
    return {
        vocabulary.SETTINGS_LEARNING_RATE: float(arguments.learning_rate),
        vocabulary.SETTINGS_SAMPLES: samples // ranks,
        vocabulary.SETTINGS_GROUP: int(generating.num_return_sequences),
        vocabulary.SETTINGS_LIMIT: int(generating.max_new_tokens),
        vocabulary.SETTINGS_UPDATES: samples / (updated * ranks) * int(config.ppo_epochs),
        vocabulary.SETTINGS_STEPS: int(config.max_steps),
        **{name: float(value) for name, value in _holding(arguments, generating).items() if value is not None},
    }


def _holding(arguments: Any, generating: Any) -> dict[str, float | None]:
    """Return what may hold the policy; the KL has a coefficient in the rewards, which adapts, and one in the loss."""
    return {
        vocabulary.SETTINGS_TEMPERATURE: getattr(generating, "temperature", None),
        vocabulary.SETTINGS_GRADIENT: getattr(arguments, "max_grad_norm", None) or None,
    }


def _enter(args: Args, kwargs: Kwargs) -> None:
    """Begin a step, or the stage of a timer."""
    pipeline, timer = driver.trainer, args[0]
    name = str(timer.name)
    if pipeline is None:
        place = offload.place_of(name)
        if place is not None:
            enter_timer(timer, offload.begin(*place))
    elif name in STEPS:
        begin_step(int(pipeline.state.step) + 1)
    else:
        enter_timer(timer, stage_of(TIMERS, name))


def _leave(args: Args, kwargs: Kwargs, result: object) -> None:
    """End the stage of a timer: ``__exit__(self, *exc_info)``."""
    timer = args[0]
    leave_timer(*args)
    place = None if driver.trainer is not None else offload.place_of(str(timer.name))
    if place is not None:
        offload.end(*place, timer.last)


def _checkpoint_stage(args: Args, kwargs: Kwargs) -> str | None:
    """Name a checkpoint in the steps that write one: ``do_checkpoint(self, global_step, is_last_step)`` is in each."""
    step, config = args[1], args[0].pipeline_config
    is_due = step > 0 and (step % config.save_steps == 0 or step == config.max_steps - 1)
    return vocabulary.CHECKPOINT if is_due else None


def _wait_stage() -> str | None:
    """Name the wait of a driver for calls that it makes between its timers, as for loading and offloading."""
    return vocabulary.IDLE if innermost() in (None, tracing.container) else None


HOOKS: tuple[Hook, ...] = (
    CallbackHook(target=f"{BASE}.__init__", before=_made),
    CallbackHook(target=f"{BASE}.run", before=_begin_loop, after=end_loop, failed=loop_failed),
    StageHook(
        target=f"{BASE}.do_checkpoint",
        stage=_checkpoint_stage,
        attributes=((vocabulary.CHECKPOINT_FORMAT, "roll"),),
    ),
    StageHook(target="roll.pipeline.agentic.agentic_pipeline:AgenticPipeline.val", stage=vocabulary.EVALUATE),
    GET,
    CallbackHook(target=f"{TIMER}.__enter__", before=_enter),
    CallbackHook(target=f"{TIMER}.__exit__", after=_leave),
)
