"""Rollouts of ROLL's RLVR pipelines: prompts, samples and requests in the schedulers; queues and routers.

Source: ROLL 0.3.0, ``distributed/scheduler/generate_scheduler.py``, ``user_defined_rollout_loop.py``, ``router.py``.

One task of a scheduler, made while it is set up, makes the tasks of all prompts. So what they inherit says nothing:
the step that a prompt is for is that of the ``get_batch`` that is open. With ``async_generation_ratio`` a prompt may
outlive its step, and is a trace of its own, whose key is the id of the group. Step N trains weights of N updates.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from otel_rl import vocabulary
from otel_rl.hooks import Args, CallbackHook, Hook, Kwargs, Memory, StageHook
from otel_rl.hooks.submitted import SubmittedHook
from otel_rl.integrations.roll.batches import COUNTED, rows_of
from otel_rl.integrations.roll.shape import VALIDATION
from otel_rl.process.carrier import Carrier
from otel_rl.process.state import state
from otel_rl.records import Value
from otel_rl.single_controller.sample_groups import (
    QUEUE,
    count_dropped,
    count_samples,
    lags_of,
    link_groups,
    of_sample,
    server_acquired,
    server_released,
    show_groups,
)
from otel_rl.trace.stage import current_stage

SCHEDULER = "roll.distributed.scheduler.generate_scheduler"
DYNAMIC = f"{SCHEDULER}:DynamicSamplingScheduler"
CONTEXT = f"{SCHEDULER}:RolloutContext"
BUFFER = f"{SCHEDULER}:ReplayBuffer"
PAUSE = (vocabulary.SYNC_OPERATION, "pause_sampling")
LOOP = "roll.distributed.scheduler.user_defined_rollout_loop:UserDefinedRolloutLoop"
ROUTERS = "roll.distributed.scheduler.router"


@dataclass(eq=False)
class ScheduledBatch(Memory):
    """What a scheduler remembers."""

    carrier: Carrier | None = None
    """Names the call for the batch that is sampled now."""
    modes: dict[int, str] = field(default_factory=dict)
    """``train`` or ``eval`` by ``id()`` of the replay buffer."""


sampling = ScheduledBatch.keep("sampling")


def _mode_of(scheduler: Any) -> str:
    return "eval" if scheduler.is_val else "train"


def _made(args: Args, kwargs: Kwargs, result: object) -> None:
    """Learn what this scheduler samples: each of a job has its own domains."""
    scheduler = args[0]
    sampling.modes[id(scheduler.replay_buffer)] = _mode_of(scheduler)
    state.inherit(role=f"scheduler_{VALIDATION}" if scheduler.is_val else f"scheduler-{_domains(scheduler)}")


# --- a batch: get_batch(self, data, global_step, batch_size) ----------------------------------------------------------


def _say_batch(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    return {vocabulary.BATCH_SIZE: int(args[3]), vocabulary.MODE: _mode_of(args[0])}


def _begin_batch(args: Args, kwargs: Kwargs) -> None:
    """Remember whose batch is sampled: the stage of this call, or what the caller handed on."""
    sampling.carrier = Carrier.current()


def _collected(args: Args, kwargs: Kwargs) -> None:
    """Record how old the weights of a batch are, and link to its groups: ``collect_items_as_batch``."""
    scheduler, items = args[0], kwargs.get("finished_items") or args[1]
    if _mode_of(scheduler) != "train" or not items:
        return
    newest = int(scheduler.replay_buffer.current_step)
    lags = [newest - int(item.sampling_start_step) for item in items]
    stage = current_stage()
    if stage is not None:
        for key, value in lags_of(lags, newest).items():
            stage.set_attribute(key, value)
        if _is_apart(scheduler):
            link_groups(zip((_group_id(scheduler, item.prompt_id) for item in items), lags, strict=True), stage)


# --- a prompt ---------------------------------------------------------------------------------------------------------


def _is_apart(scheduler: Any) -> bool:
    """Return whether prompts outlive the step that submits them."""
    return not scheduler.is_val and float(scheduler.pipeline_config.async_generation_ratio) > 0


def _group_id(scheduler: Any, prompt_id: int) -> str:
    """Name a prompt among those of all schedulers, of which each counts its own."""
    return f"{f'{VALIDATION}-' if scheduler.is_val else ''}{_domains(scheduler)}-{prompt_id}"


def _domains(scheduler: Any) -> str:
    return "-".join(scheduler.reward_clusters)


def _say_group(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    scheduler, prompt_id = args[:2]
    return {vocabulary.GROUP_ID: _group_id(scheduler, prompt_id), vocabulary.MODE: _mode_of(scheduler)}


def _submitted(args: Args, kwargs: Kwargs) -> tuple[Carrier | None, str | None]:
    scheduler, prompt_id = args[:2]
    return sampling.carrier, _group_id(scheduler, prompt_id) if _is_apart(scheduler) else None


def _prompt_failed(args: Args, kwargs: Kwargs, error: BaseException) -> None:
    if isinstance(error, Exception) and not isinstance(error, asyncio.CancelledError):
        count_dropped(1, "failed", _mode_of(args[0]))


def _filtered(args: Args, kwargs: Kwargs, result: object) -> None:
    """Count a prompt of which the rollout loop makes no samples: ``process_new_prompt(self, context)``.

    At the end of the training None comes of all that are running.
    """
    context = args[1]
    if result is None and not context._scheduler.router_manager.need_shutdown:
        count_dropped(1, "filtered", _mode_of(context))


def _sampled(args: Args, kwargs: Kwargs, result: Any) -> dict[str, Value] | None:
    """Count a sample that is complete: ``_generate_and_reward(self, context, req, domain)``."""
    context = kwargs.get("context") or args[1]
    said: dict[str, Value] = {}
    for sample in result or ():
        for key, value in rows_of(sample).items():
            said[key] = int(said.get(key, 0)) + int(value)  # type: ignore[arg-type]
    if not said or context.is_val:
        return said
    samples, prompt, response, environment = (int(said.get(key, 0)) for key in COUNTED)  # type: ignore[arg-type]
    count_samples(samples, prompt, response, environment)
    return said


def _answered(args: Args, kwargs: Kwargs, result: Any) -> dict[str, Value]:
    """Describe what came of a turn: ``generate(self, req, domain)``; None comes at a shutdown."""
    if result is None:
        return {vocabulary.REQUEST_ABORTED: True}
    meta = result.meta_info
    finish = tuple(str(word) for word in meta.get("finish_reasons") or () if word)
    said: dict[str, Value] = {vocabulary.FINISH_REASONS: finish} if finish else {}
    if meta.get("output_token_ids") is not None:
        said[vocabulary.TOKENS_RESPONSE] = sum(map(len, meta["output_token_ids"]))
    return said | ({vocabulary.REQUEST_ABORTED: True} if "abort" in finish else {})


# --- queue and router -------------------------------------------------------------------------------------------------


def _show_prompts(args: Args, kwargs: Kwargs, result: object) -> None:
    buffer = args[0]
    mode = sampling.modes.get(id(buffer), "train")
    running = buffer.running_prompts + buffer.running_extra_prompts
    show_groups({"running": running, "finished": buffer.completed_prompts}, mode)


def _collected_garbage(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Count prompts that are aborted: too old, or, where none outlives its step, more than the step needs."""
    if result:
        reason = "stale" if args[0].async_generation_ratio > 0 else "surplus"
        count_dropped(len(result), reason, sampling.modes.get(id(args[0]), "train"))
    _show_prompts(args, kwargs, result)


def _acquired(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Count a call that a server gets: ``acquire(self, credit)``, ``reacquire(self, dp_rank, credit)``."""
    server_acquired(str(args[1] if result is None else result))


def _released(args: Args, kwargs: Kwargs, result: object) -> None:
    server_released(str(args[1]))


def _waits(target: str, **more: Any) -> Hook:
    """Record a wait: while sampling is suspended, and for a server that has room."""
    return StageHook(target=target, stage=vocabulary.IDLE, attributes=(QUEUE,), optional=True, **more)


HOOKS: tuple[Hook, ...] = (
    CallbackHook(target=f"{DYNAMIC}.__init__", after=_made),
    StageHook(target=f"{DYNAMIC}.get_batch", stage=vocabulary.SAMPLE, attributes=_say_batch),
    CallbackHook(target=f"{DYNAMIC}._get_batch_impl", before=_begin_batch, optional=True),
    CallbackHook(target=f"{DYNAMIC}.collect_items_as_batch", before=_collected),
    StageHook(target=f"{DYNAMIC}.pause_sampling", stage=vocabulary.SYNC, attributes=(PAUSE,)),
    SubmittedHook(
        target=f"{CONTEXT}.process_new_prompt",
        stage=vocabulary.SAMPLE_GROUP,
        attributes=_say_group,
        submitted=_submitted,
        failed=_prompt_failed,
    ),
    CallbackHook(target=f"{LOOP}.process_new_prompt", after=_filtered),
    StageHook(
        target=f"{LOOP}._generate_and_reward", stage=vocabulary.TRAJECTORY, attributes=of_sample, capture=_sampled
    ),
    StageHook(target=f"{CONTEXT}.generate", stage=vocabulary.SAMPLE_TURN, attributes=of_sample, capture=_answered),
    *(CallbackHook(target=f"{BUFFER}.{name}", after=_show_prompts) for name in ("advance_step", "commit", "abort")),
    CallbackHook(target=f"{BUFFER}.gc", after=_collected_garbage),
    _waits(f"{ROUTERS}:InprocProxy.on_send_request"),
    _waits(f"{ROUTERS}:RayProxy.on_send_request"),
    _waits(f"{ROUTERS}:RayProxy.on_send_request_sync"),
    _waits(f"{ROUTERS}:PromptAffinityRouter.acquire", after=_acquired),
    _waits(f"{ROUTERS}:PromptAffinityRouter.reacquire", after=_acquired),
    CallbackHook(target=f"{ROUTERS}:PromptAffinityRouter.release", after=_released, optional=True),
)
