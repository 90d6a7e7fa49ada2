"""Rollouts of ROLL's agentic pipelines: trajectories, turns and steps of environments; the queue of groups.

Source: ROLL 0.3.0, ``distributed/scheduler/rollout_scheduler.py``, ``pipeline/agentic/environment_worker.py``,
``pipeline/agentic/env_manager/``.

An environment has a thread, which one call keeps busy for the whole training. So the step that a trajectory is for is
that of the last ``update_step`` before it began. With ``async_generation_ratio`` a trajectory may outlive its step, and
is a trace of its own, whose key is its id.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from otel_rl import vocabulary
from otel_rl.clock import monotonic_ns
from otel_rl.hooks import Args, CallbackHook, Hook, Kwargs, Memory, StageHook
from otel_rl.integrations.roll.batches import COUNTED, rows_of
from otel_rl.integrations.roll.shape import mode_of_process
from otel_rl.process.carrier import Carrier
from otel_rl.records import Value
from otel_rl.single_controller.sample_groups import count_dropped, count_samples, lags_of, link_groups, show_groups
from otel_rl.single_controller.tables import follow_made, sync_hooks, tool_hook
from otel_rl.trace.apart import open_apart, open_below
from otel_rl.trace.stage import Stage, current_stage

SCHEDULER = "roll.distributed.scheduler.rollout_scheduler"
ROLLOUTS, GROUPS = f"{SCHEDULER}:RolloutScheduler", f"{SCHEDULER}:GroupQueue"
WORKER = "roll.pipeline.agentic.environment_worker:EnvironmentWorker"
MANAGERS = "roll.pipeline.agentic.env_manager"
BASE, TRAJECTORIES = f"{MANAGERS}.base_env_manager:BaseEnvManager", f"{MANAGERS}.traj_env_manager:TrajEnvManager"
MOST_BEGUN = 100_000


@dataclass(eq=False)
class Environments(Memory):
    """What a worker remembers of its environments."""

    carrier: Carrier | None = None
    """Names the last call that told this worker a step."""
    trajectories: dict[int, Stage] = field(default_factory=dict)
    """Open trajectories, by ``id()`` of the manager of their environment."""
    filtered: dict[int, int] = field(default_factory=dict)
    """Groups that a queue has filtered out in this step, by its ``id()``."""
    queues: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Groups that are running and finished, by ``id()`` of their queue, of which a process has many."""
    begun: dict[int, int] = field(default_factory=dict)
    """The step in which a trajectory's group was begun, by its ``id()``, until a batch takes it."""


environments = Environments.keep("environments")


# --- the scheduler: get_batch(self, data, batch_size) -----------------------------------------------------------------


def _say_batch(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    scheduler, _, size = args[:3]
    return {vocabulary.MODE: _mode(scheduler.mode), **({vocabulary.BATCH_SIZE: int(size)} if size > 0 else {})}


def _mode(mode: str) -> str:
    return "train" if mode == "train" else "eval"


def _collected(args: Args, kwargs: Kwargs, result: Any) -> dict[str, Value]:
    """Link a batch to the trajectories that were traces of their own."""
    scheduler, stage = args[0], current_stage()
    names = getattr(result, "non_tensor_batch", None) or {}
    if stage is not None and _mode(scheduler.mode) == "train" and scheduler.config.async_generation_ratio > 0:
        link_groups(((str(name), None) for name in names.get("traj_id", ())), stage)
    return {}


# --- the queue: a process of its own, with a GroupQueue for each group of environments --------------------------------


def _advancing(args: Args, kwargs: Kwargs) -> None:
    """Count the groups that are too old for the step that begins: ``advance_step(self, step)``."""
    queue, step = args[:2]
    if queue.current_step is not None:
        old = sum(step - group.create_step > queue.async_generation_ratio for group in queue.groups.values())
        if old:
            count_dropped(old, "stale", mode_of_process())


def _putting(args: Args, kwargs: Kwargs) -> None:
    environments.filtered[id(args[0])] = args[0].group_filter_count


def _put(args: Args, kwargs: Kwargs, result: object) -> None:
    """Count a group that its last trajectory completes, if it is filtered out."""
    queue = args[0]
    if queue.group_filter_count > environments.filtered[id(queue)]:
        count_dropped(1, "filtered", mode_of_process())
    _show_groups(args, kwargs, result)


def _show_groups(args: Args, kwargs: Kwargs, result: object) -> None:
    queue = args[0]
    finished = sum(len(group.rollouts) >= queue.group_size for group in queue.groups.values())
    environments.queues[id(queue)] = len(queue.groups) - finished, finished
    running, done = map(sum, zip(*environments.queues.values(), strict=True))
    show_groups({"running": running, "finished": done}, mode_of_process())


def _taken(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Keep when a group was begun: ``GroupQueue.get(self)``; a later call for a batch may return it."""
    if len(environments.begun) >= MOST_BEGUN:  # of those that are left the queue has thrown most away
        environments.begun.clear()
    environments.begun.update((id(one), int(result.create_step)) for one in result.rollouts if one is not None)


def _batch_taken(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Record how old the weights are that a batch was begun with: ``get_batch(self, batch_size, current_step)``."""
    step = int(args[2])
    begun = [environments.begun.pop(id(rollout), None) for rollout in result]
    lags = [step - one for one in begun if one is not None]
    if lags and mode_of_process() == "train":
        lags_of(lags, step)


# --- environments -----------------------------------------------------------------------------------------------------


def _know_step(args: Args, kwargs: Kwargs) -> None:
    environments.carrier = Carrier.current()


def _is_apart(manager: Any) -> bool:
    return _mode(manager.mode) == "train" and manager.pipeline_config.async_generation_ratio > 0


def _ids(manager: Any) -> dict[str, Value]:
    cache = manager.rollout_cache
    group = f"{cache.tag}_{cache.group_id}_{manager.episode_id}_{manager.group_seed}"
    return {vocabulary.GROUP_ID: group, vocabulary.SAMPLE_ID: f"{group}_{cache.env_id}"}


def _begin_trajectory(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Begin a trajectory when its environment has been reset, for which it may have waited since the step before."""
    manager = args[0]
    if result is None:
        return
    said = {**_ids(manager), vocabulary.MODE: _mode(manager.mode)}
    stage, carrier = Stage(vocabulary.TRAJECTORY, said, coarse=True), environments.carrier
    if _is_apart(manager):
        open_apart(stage, str(said[vocabulary.SAMPLE_ID]), carrier)
    elif carrier is not None:
        open_below(stage, carrier)
    else:
        stage.open()
    environments.trajectories[id(manager)] = stage


def _end_trajectory(args: Args, kwargs: Kwargs, result: object = None) -> None:
    stage = environments.trajectories.pop(id(args[0]), None)
    if stage is not None:
        stage.close(monotonic_ns())


def _trajectory_failed(args: Args, kwargs: Kwargs, error: BaseException) -> None:
    stage = environments.trajectories.pop(id(args[0]), None)
    if stage is not None:
        stage.fail(error)
        stage.close(monotonic_ns())


def _say_of_trajectory(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    manager = args[0]
    return {**_ids(manager), vocabulary.MODE: _mode(manager.mode)}


def _decided(args: Args, kwargs: Kwargs, result: Any) -> dict[str, Value]:
    """Describe what came of a turn: ``make_decision(self, rollout_cache)``."""
    if result.batch is None:
        reason = getattr(result.meta_info.get("stop_reason"), "name", "")  # values of the enum are numbers
        return {vocabulary.REQUEST_ABORTED: True} if reason == "ABORT" else {}
    content = args[0].rollout_cache.history[-1]
    prompt, response = content.get("prompt_ids") or (), content.get("response_ids") or ()
    return {vocabulary.TOKENS_PROMPT: len(prompt), vocabulary.TOKENS_RESPONSE: len(response)}


def _tag(args: Args) -> str:
    return str(args[0].rollout_cache.tag)


def _formulated(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Count a trajectory that is complete, and end it: ``formulate_rollouts(self, rollout_cache)``."""
    manager, said = args[0], rows_of(result)
    stage = environments.trajectories.get(id(manager))
    if stage is not None:
        stage.set_attributes({key: said[key] for key in COUNTED[1:] if key in said})
    _end_trajectory(args, kwargs)
    if _mode(manager.mode) == "train":
        samples, prompt, response, environment = (int(said.get(key, 0)) for key in COUNTED)  # type: ignore[arg-type]
        count_samples(samples, prompt, response, environment)


HOOKS: tuple[Hook, ...] = (
    StageHook(target=f"{ROLLOUTS}.get_batch", stage=vocabulary.SAMPLE, attributes=_say_batch, capture=_collected),
    *sync_hooks(ROLLOUTS, "suspend", "shrink_sampler", "expand_sampler", optional=True),
    CallbackHook(target=f"{GROUPS}.advance_step", before=_advancing, after=_show_groups),
    CallbackHook(target=f"{GROUPS}.put", before=_putting, after=_put),
    CallbackHook(target=f"{GROUPS}.get", after=_taken),
    CallbackHook(target=f"{WORKER}.update_step", before=_know_step),
    CallbackHook(target=f"{TRAJECTORIES}.__init__", after=follow_made),
    CallbackHook(
        target=f"{TRAJECTORIES}.reset", before=_end_trajectory, after=_begin_trajectory, failed=_trajectory_failed
    ),
    StageHook(
        target=f"{TRAJECTORIES}.make_decision",
        stage=vocabulary.SAMPLE_TURN,
        attributes=_say_of_trajectory,
        capture=_decided,
    ),
    tool_hook(f"{TRAJECTORIES}.step", _tag, _say_of_trajectory),
    CallbackHook(target=f"{TRAJECTORIES}.formulate_rollouts", after=_formulated),
    CallbackHook(target=f"{TRAJECTORIES}.run_rollout_loop", after=_end_trajectory, failed=_trajectory_failed),
)
ARRIVING: tuple[Hook, ...] = (CallbackHook(target="GroupQueueManager.get_batch", after=_batch_taken),)
