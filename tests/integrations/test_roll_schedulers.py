"""What becomes of prompts in ROLL's schedulers, and of groups and turns in its agentic pipelines."""

from __future__ import annotations

import asyncio
import enum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.hooks.hook import wrap
from otel_rl.integrations.roll import environments, schedulers
from otel_rl.journal.read import Run
from otel_rl.process.state import state
from tests.fixtures import Recording

HOOKS = {
    hook.target.rpartition(":")[2]: hook for hook in (*schedulers.HOOKS, *environments.HOOKS, *environments.ARRIVING)
}


class Tensors(dict[str, Any]):
    """Stands for a ``TensorDict``."""

    batch_size = (1,)


class StopReason(enum.Enum):
    """Stands for ROLL's, whose values are numbers, too."""

    FINISH = enum.auto()
    ABORT = enum.auto()
    MAX_LENGTH = enum.auto()


def call(target: str, *args: Any, result: Any = None, effect: Any = None, **kwargs: Any) -> Any:
    """Call a function with the hook of a target; ``effect`` is what it does."""

    def function(*args: Any, **kwargs: Any) -> Any:
        if effect is not None:
            effect()
        return result

    return wrap(HOOKS[target], function)(*args, **kwargs)


def call_async(target: str, *args: Any, result: Any = None, error: BaseException | None = None, **kwargs: Any) -> Any:
    """Call a coroutine function with the hook of a target."""

    async def function(*args: Any, **kwargs: Any) -> Any:
        if error is not None:
            raise error
        return result

    return asyncio.run(wrap(HOOKS[target], function)(*args, **kwargs))


def dropped(run: Run) -> list[tuple[Any, ...]]:
    """Why and how many groups were dropped."""
    return sorted((*one.attributes.values(), one.value) for one in run.last_points(v.GROUPS_DROPPED))


def said(run: Run, name: str, *keys: str) -> list[tuple[Any, ...]]:
    """What the spans of a name say."""
    return [tuple(one.attributes.get(key) for key in keys) for one in run.spans(None) if one.name == name]


def scheduler(*, is_val: bool = False, ratio: float = 0, need_shutdown: bool = False) -> Any:
    """Make what the hooks see of a ``DynamicSamplingScheduler``."""
    buffer = SimpleNamespace(current_step=3, running_prompts=2, running_extra_prompts=1, completed_prompts=4)
    return SimpleNamespace(
        is_val=is_val,
        pipeline_config=SimpleNamespace(async_generation_ratio=ratio),
        reward_clusters={"math": None, "code": None},
        replay_buffer=buffer,
        router_manager=SimpleNamespace(need_shutdown=need_shutdown),
    )


# --- RLVR -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("is_val", "mode", "ratio", "reason"),
    [(False, "train", 1, "stale"), (True, "eval", 1, "stale"), (False, "train", 0, "surplus")],
)
def test_old_prompts_are_counted_by_whose_they_are(
    recording: Recording, is_val: bool, mode: str, ratio: float, reason: str
) -> None:
    """A buffer does not know it; its scheduler does. Where none outlives its step, there were too many."""
    one = scheduler(is_val=is_val, ratio=ratio)
    one.replay_buffer.async_generation_ratio = ratio
    call("DynamicSamplingScheduler.__init__", one)
    for old in ([4, 5], []):
        call("ReplayBuffer.gc", one.replay_buffer, result=old)
    run = recording.stop()
    assert [(reason, mode, 2)] == dropped(run)
    states = {(*point.attributes.values(), point.value) for point in run.points(v.GROUPS.__eq__)}
    assert {("running", mode, 3), ("finished", mode, 4)} == states


@pytest.mark.parametrize(
    ("result", "need_shutdown", "expected"),
    [(None, False, [("filtered", "train", 1)]), (None, True, []), ([], False, [])],
    ids=["filtered", "the end", "some"],
)
def test_a_prompt_without_samples_is_filtered(
    recording: Recording, result: Any, need_shutdown: bool, expected: Any
) -> None:
    """Not one that the end of the training leaves."""
    context = SimpleNamespace(is_val=False, _scheduler=scheduler(need_shutdown=need_shutdown))
    call_async("UserDefinedRolloutLoop.process_new_prompt", object(), context, result=result)
    assert expected == dropped(recording.stop())


@pytest.mark.parametrize(
    ("error", "expected"),
    [(ValueError(), [("failed", "train", 1)]), (asyncio.CancelledError(), [])],
    ids=["failed", "cancelled"],
)
def test_a_prompt_that_raises_has_failed(recording: Recording, error: BaseException, expected: Any) -> None:
    """One that is cancelled is counted by who cancels it."""
    with pytest.raises(type(error)):
        call_async("RolloutContext.process_new_prompt", scheduler(), 3, error=error)
    run = recording.stop()
    assert expected == dropped(run)
    assert [("math-code-3", "train")] == said(run, v.SAMPLE_GROUP, v.GROUP_ID, v.MODE)


def test_a_group_is_below_the_batch_that_it_is_for(recording: Recording) -> None:
    """Whatever the task inherited; one that may outlive the step is a trace of its own."""
    with otel_rl.step(5), otel_rl.stage("sample"):
        call("DynamicSamplingScheduler._get_batch_impl", scheduler(), None, 5, 2)
    call_async("RolloutContext.process_new_prompt", scheduler(), 3)
    call_async("RolloutContext.process_new_prompt", scheduler(ratio=1), 4)
    call_async("RolloutContext.process_new_prompt", scheduler(is_val=True, ratio=1), 5)
    spans = list(recording.stop().spans(None))
    (sample,) = [span for span in spans if span.name == v.SAMPLE]
    found = {span.attributes[v.GROUP_ID]: span for span in spans if span.name == v.SAMPLE_GROUP}
    assert {"math-code-3", "math-code-4", "val-math-code-5"} == found.keys()
    below = {key for key, span in found.items() if span.parent_id == sample.span_id}
    assert {"math-code-3", "val-math-code-5"} == below
    assert (b"", "train 5") == (found["math-code-4"].parent_id, found["math-code-4"].attributes[v.SUBMITTED_STEP])


def test_a_batch_says_how_old_its_weights_are(recording: Recording) -> None:
    """Nothing is said of a validation's, nor of none."""
    items = [SimpleNamespace(sampling_start_step=step, prompt_id=step) for step in (3, 2)]
    with otel_rl.step(3), otel_rl.stage("sample"):
        call("DynamicSamplingScheduler.collect_items_as_batch", scheduler(ratio=1), items)
        call("DynamicSamplingScheduler.collect_items_as_batch", scheduler(is_val=True), items)
    run = recording.stop()
    assert [(3, 1, 1)] == said(run, v.SAMPLE, v.POLICY_VERSION, v.LAG_MAX, v.STALE_COUNT)
    assert [0.5] == [point.value for point in run.points(v.SAMPLE_LAG.__eq__)]


def answer(**meta: Any) -> Any:
    """Make what a router's client returns."""
    return SimpleNamespace(meta_info=meta)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (answer(finish_reasons=["stop"], output_token_ids=[[1, 2], [3]]), (("stop",), 3, None)),
        (answer(finish_reasons=["abort"], output_token_ids=[[1]]), (("abort",), 1, True)),
        (answer(finish_reasons=[None], output_token_ids=None), (None, None, None)),
        (None, (None, None, True)),
    ],
    ids=["answered", "aborted", "unknown", "the end"],
)
def test_a_turn_says_what_came_of_it(recording: Recording, result: Any, expected: Any) -> None:
    """As far as ROLL says it."""
    with otel_rl.stage("sample.trajectory", **{v.MODE: "train", v.GROUP_ID: "g"}):
        call_async("RolloutContext.generate", object(), object(), "math", result=result)
    keys = v.FINISH_REASONS, v.TOKENS_RESPONSE, v.REQUEST_ABORTED, v.MODE, v.GROUP_ID
    assert [(*expected, "train", "g")] == said(recording.stop(), v.SAMPLE_TURN, *keys)


def test_a_server_is_known_by_its_rank(recording: Recording) -> None:
    """Also where a prompt keeps the one that it had."""
    with otel_rl.stage("sample.turn"):
        call_async("PromptAffinityRouter.acquire", object(), 1, result=2)
    call_async("PromptAffinityRouter.reacquire", object(), 2, 1)
    call("PromptAffinityRouter.release", object(), 2, 1)
    run = recording.stop()
    assert [("2", 1), ("2", 2), ("2", 1)] == [
        (*one.attributes.values(), one.value) for one in run.points(v.IN_FLIGHT.__eq__)
    ]
    assert [("2",)] == said(run, v.SAMPLE_TURN, v.REPLICA)
    assert [("queue",)] * 2 == said(run, v.IDLE, v.IDLE_REASON)


# --- agentic ----------------------------------------------------------------------------------------------------------


def queue(*created: int, ratio: int = 1) -> Any:
    """Make a queue with a group for each step that one was begun in."""
    made = {at: SimpleNamespace(create_step=step, rollouts=[]) for at, step in enumerate(created)}
    said = {"current_step": 2, "async_generation_ratio": ratio, "group_size": 2, "group_filter_count": 0}
    return SimpleNamespace(groups=made, **said)


def test_groups_that_a_new_step_finds_too_old(recording: Recording) -> None:
    """The first step finds none."""
    call("GroupQueue.advance_step", queue(0, 1, 2), 3)
    first = queue()
    first.current_step = None
    call("GroupQueue.advance_step", first, 0)
    assert [("stale", "train", 2)] == dropped(recording.stop())


def test_groups_that_are_filtered(recording: Recording) -> None:
    """A trajectory that comes too late is of a group that has been counted."""
    state.inherit(extra={v.ACTOR_NAME: "GroupQueueManager-val"})
    one = queue(2)
    call("GroupQueue.put", one, 7, 1, "late")
    call("GroupQueue.put", one, 7, 1, None)
    call("GroupQueue.put", one, 0, 2, "first")
    call("GroupQueue.put", one, 0, 2, "second", effect=lambda: setattr(one, "group_filter_count", 1))
    assert [("filtered", "eval", 1)] == dropped(recording.stop())


def test_queues_of_a_process_are_counted_together(recording: Recording) -> None:
    """Each group of environments has one."""
    queues = queue(2), queue(2, 2)
    queues[1].groups[0].rollouts = ["one", "two"]
    for one in queues:
        call("GroupQueue.put", one, 0, 2, None)
    states = [(*point.attributes.values(), point.value) for point in recording.stop().points(v.GROUPS.__eq__)]
    assert {("running", "train", 2), ("finished", "train", 1)} == set(states[-2:])


def test_a_batch_says_the_lag_of_its_groups(recording: Recording) -> None:
    """In steps between the begin of each and the one that takes it, whenever it was finished."""
    rollouts = [object(), object(), None]
    call_async("GroupQueue.get", queue(), result=SimpleNamespace(create_step=1, rollouts=rollouts))
    call_async("GroupQueueManager.get_batch", object(), 2, 3, result=rollouts[:2])
    call_async("GroupQueueManager.get_batch", object(), 2, 4, result=[object()])
    assert [2] == [point.value for point in recording.stop().points(v.SAMPLE_LAG.__eq__)]


class Manager:
    """Stands for a ``TrajEnvManager``."""

    def __init__(self, *, mode: str = "train", ratio: int = 0) -> None:
        self.mode, self.pipeline_config = mode, SimpleNamespace(async_generation_ratio=ratio)
        self.episode_id, self.group_seed = 4, 9
        history = [{"prompt_ids": [1] * 5, "response_ids": [2]}, {"prompt_ids": [1] * 2, "response_ids": [2] * 3}, {}]
        self.rollout_cache = SimpleNamespace(tag="game", group_id=1, env_id=3, history=history)


def test_an_episode_is_a_trajectory(recording: Recording) -> None:
    """It begins when its environment has been reset, and ends when its rollouts are made, or with the loop."""
    manager = Manager()
    with otel_rl.step(2), otel_rl.stage("sample"):
        call_async("EnvironmentWorker.update_step", object(), global_step=2, trace_meta=None)
    call("TrajEnvManager.reset", manager, result=manager.rollout_cache)
    recording.tick(3)
    masks = {"attention_mask": np.ones((1, 11)), "response_mask": np.eye(11)[:4].sum(0), "prompt_mask": np.ones(5)}
    rollouts = SimpleNamespace(batch=Tensors(masks))
    call("TrajEnvManager.formulate_rollouts", manager, manager.rollout_cache, result=rollouts)
    recording.tick(5)
    call("TrajEnvManager.reset", manager, result=manager.rollout_cache)
    recording.tick(1)
    call("TrajEnvManager.run_rollout_loop", manager, None)
    spans = list(recording.stop().spans(None))
    (sample,) = [span for span in spans if span.name == v.SAMPLE]
    found = sorted((span for span in spans if span.name == v.TRAJECTORY), key=lambda span: span.start_ns)
    assert [3, 1] == [(span.end_ns - span.start_ns) / 1e6 for span in found]
    assert {sample.span_id} == {span.parent_id for span in found}
    assert {("game_1_4_9", "game_1_4_9_3")} == {(s.attributes[v.GROUP_ID], s.attributes[v.SAMPLE_ID]) for s in found}
    keys = v.TOKENS_PROMPT, v.TOKENS_RESPONSE, v.TOKENS_ENVIRONMENT
    assert [(5, 4, 2), (None, None, None)] == [tuple(span.attributes.get(key) for key in keys) for span in found]


def test_the_end_of_the_training_begins_no_trajectory(recording: Recording) -> None:
    """Then there is no further episode."""
    call("TrajEnvManager.reset", Manager(), result=None)
    call("TrajEnvManager.run_rollout_loop", Manager(), None)
    assert [] == said(recording.stop(), v.TRAJECTORY)


def test_a_trajectory_that_fails(recording: Recording) -> None:
    """It has the error of the loop."""
    manager = Manager(ratio=1)
    call("TrajEnvManager.reset", manager, result=manager.rollout_cache)

    def fail() -> None:
        raise OSError

    with pytest.raises(OSError):
        call("TrajEnvManager.run_rollout_loop", manager, None, effect=fail)
    assert [("OSError",)] == said(recording.stop(), v.TRAJECTORY, v.ERROR_TYPE)


@pytest.mark.parametrize(
    ("reason", "batch", "expected"),
    [
        (StopReason.FINISH, {}, (None, 2, 3)),
        (StopReason.ABORT, None, (True, None, None)),
        (StopReason.MAX_LENGTH, None, (None, None, None)),
    ],
)
def test_a_decision_says_what_came_of_it(recording: Recording, reason: Any, batch: Any, expected: Any) -> None:
    """Tokens of this turn, or that it was aborted."""
    manager = Manager()
    manager.rollout_cache.history.pop()
    result = SimpleNamespace(batch=batch, meta_info={"stop_reason": reason})
    call("TrajEnvManager.make_decision", manager, manager.rollout_cache, result=result)
    keys = v.REQUEST_ABORTED, v.TOKENS_PROMPT, v.TOKENS_RESPONSE
    assert [expected] == said(recording.stop(), v.SAMPLE_TURN, *keys)


def test_a_step_of_an_environment_is_a_tool(recording: Recording) -> None:
    """Named after the environment."""
    call("TrajEnvManager.step", Manager(mode="val"), object())
    keys = v.TOOL_NAME, v.TOOL_TYPE, v.OPERATION, v.MODE, v.SAMPLE_ID
    expected = ("game", "function", v.EXECUTE_TOOL, "eval", "game_1_4_9_3")
    assert [expected] == said(recording.stop(), f"{v.EXECUTE_TOOL} game", *keys)
