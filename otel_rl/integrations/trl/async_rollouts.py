"""TRL's AsyncGRPO: groups, trajectories, turns, tools and rewards, in the worker process of rank 0.

Source: trl 1.16, ``experimental/async_grpo/async_rollout_worker.py`` (``_generate_one``, 890; ``_score_group``, 1026).
The process has one event loop, a task for each trajectory, and no steps. A group is what it makes of one prompt: a
trace of its own from the first trajectory to the end of its rewards, whose key is the number that TRL gives it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from otel_rl import vocabulary
from otel_rl.clock import monotonic_ns
from otel_rl.hooks import Args, CallbackHook, Hook, Kwargs, Memory, RequestHook, StageHook
from otel_rl.hooks.generators import ending
from otel_rl.integrations.trl.tools import record_tools
from otel_rl.layers.api import sample
from otel_rl.records import Value
from otel_rl.requests.queue import UNKNOWN, Request, record_requests
from otel_rl.single_controller.sample_groups import count_samples, of_sample, show_groups
from otel_rl.trace.apart import open_apart
from otel_rl.trace.stage import Stage, innermost

LOOP = "trl.experimental.async_grpo.async_rollout_worker:_AsyncRolloutLoop"


@dataclass(eq=False)
class Rolled(Memory):
    """What the worker remembers of its groups."""

    groups: dict[int, Stage] = field(default_factory=dict)
    """Open ones, by TRL's number."""
    begun: dict[int, int] = field(default_factory=dict)
    """How many trajectories of each have begun."""


rolled = Rolled.keep("rolled")


# --- groups and trajectories ------------------------------------------------------------------------------------------


def _begin_trajectory(args: Args, kwargs: Kwargs) -> None:
    """Make the group current in the task of a trajectory: ``_generate_one(self, prompt, tool_dict, tools, group_id)``.

    A loop of the user's own may override it.
    """
    number = _group(args, kwargs)
    group = rolled.groups.get(number)
    if group is None:
        said: dict[str, Value] = {vocabulary.GROUP_ID: str(number), vocabulary.MODE: "train"}
        group = rolled.groups[number] = Stage(vocabulary.SAMPLE_GROUP, said, coarse=True)
        open_apart(group, str(number), None)
        _show_groups()
    else:
        group.make_current()
    rolled.begun[number] = rolled.begun.get(number, 0) + 1


def _group(args: Args, kwargs: Kwargs) -> int:
    return int(args[4] if len(args) > 4 else kwargs.get("group_id", 0))


def _say_trajectory(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    number = _group(args, kwargs)
    return {
        vocabulary.GROUP_ID: str(number),
        vocabulary.SAMPLE_ID: f"{number}.{rolled.begun[number] - 1}",
        vocabulary.MODE: "train",
        vocabulary.POLICY_VERSION: int(args[0].model_version),
    }


def _describe_trajectory(args: Args, kwargs: Kwargs, result: Any) -> dict[str, Value]:
    """Count what a conversation has become: each of its rows is a sample; the tokens of its turns are the policy's."""
    _, written, rows = result[:3]
    forwarded = sum(len(row.input_ids) for row in rows)
    trained = sum(sum(row.completion_mask) for row in rows)
    count_samples(len(rows), forwarded - trained, trained, 0)
    return {
        vocabulary.TOKENS_RESPONSE: len(written),
        vocabulary.POLICY_VERSION_END: int(args[0].model_version),
    }


def _show_groups() -> None:
    show_groups({"running": len(rolled.groups)}, "train")


# --- rewards ----------------------------------------------------------------------------------------------------------


def _begin_rewards(args: Args, kwargs: Kwargs) -> None:
    group = rolled.groups.get(args[1].group_id)
    if group is not None:
        group.make_current()


def _say_rewards(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    group = args[1]
    return {
        vocabulary.GROUP_ID: str(group.group_id),
        vocabulary.MODE: "train",
        vocabulary.BATCH_SIZE: len(group.completions),
        vocabulary.REWARD_FUNCTION: ", ".join(args[0].reward_func_names),
    }


def _scored(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Record the samples of a group, which is complete."""
    for index, one in enumerate(result):
        said = {name.removeprefix("rewards/"): value for name, value in one.metrics.items() if "rewards/" in name}
        trained = int(one.completion_mask.sum())
        sample(
            id=f"{one.group_id}.{index}",
            group=str(one.group_id),
            reward=one.metrics.get("reward"),
            rewards=said,
            advantage=one.advantage,
            prompt_tokens=len(one.input_ids) - trained,
            response_tokens=trained,
            policy_version=one.model_version,
            discarded=None,  # the trainer may find it stale
            prompt=one.prompt,
            response=one.completion,
        )
    _end_group(args)


def _rewards_failed(args: Args, kwargs: Kwargs, error: BaseException) -> None:
    _end_group(args, error)


def _end_group(args: Args, error: BaseException | None = None) -> None:
    number = args[1].group_id
    group = rolled.groups.pop(number, None)
    rolled.begun.pop(number, None)
    if group is not None:
        if error is not None:
            group.fail(error)
        group.close(monotonic_ns())
        _show_groups()


# --- turns and tools --------------------------------------------------------------------------------------------------


def _say_turn(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    return {**of_sample(args, kwargs), vocabulary.TOKENS_PROMPT: len(args[1])}


def _answered(args: Args, kwargs: Kwargs, result: Any) -> dict[str, Value]:
    return {vocabulary.TOKENS_RESPONSE: len(result[0]), vocabulary.POLICY_VERSION_END: int(args[0].model_version)}


class WorkerRequest:
    """One request to the vLLM server, which answers it as a whole: no time of its first token is known."""

    def __init__(self, asked: dict[str, Any], policy: int) -> None:
        self.submitted = monotonic_ns()
        self.asked, self.policy, self.parent = asked, policy, innermost()
        said = (self.parent and self.parent.attributes) or {}
        self.group = str(said.get(vocabulary.GROUP_ID, ""))
        self.sample = str(said.get(vocabulary.SAMPLE_ID, ""))

    def item(self, value: Any) -> None:
        """Do nothing: this is no generator."""

    def end(self, result: Any, error: BaseException | None) -> None:
        """Leave the answer to the flusher."""
        how = None if error is None else ending(error)
        record_requests(_requests, self, monotonic_ns(), result, how, parent=self.parent)


def _begin_post(args: Args, kwargs: Kwargs) -> WorkerRequest | None:
    return WorkerRequest(args[2], int(args[0].model_version)) if str(args[1]).endswith("/completions") else None


def _requests(posted: WorkerRequest, ended: int, answer: Any, how: Any) -> Iterator[Request]:
    asked = posted.asked
    choice = {} if answer is None else answer["choices"][0]
    yield Request(
        "trl-client",
        posted.submitted,
        ended,
        input_tokens=len(asked.get("prompt") or ()),
        output_tokens=UNKNOWN if how is not None else len(choice["token_ids"]),
        finish=how.finish if how is not None else str(choice.get("finish_reason") or ""),
        error="" if how is None else how.error,
        streamed=True,
        operation="text_completion",
        id="" if answer is None else str(answer.get("id") or ""),
        sample=posted.sample,
        group=posted.group,
        policy_start=posted.policy,
        limit=int(asked.get("max_tokens") or UNKNOWN),
    )


def _begin_tools(args: Args, kwargs: Kwargs) -> None:
    """Let the tools of a trajectory record their calls: ``_execute_tool_calls(self, tool_calls, tool_dict)``."""
    trajectory = innermost()
    if trajectory is not None:
        record_tools(args[2], trajectory)


HOOKS: tuple[Hook, ...] = (
    StageHook(
        target=f"{LOOP}._generate_one",
        stage=vocabulary.TRAJECTORY,
        before=_begin_trajectory,
        attributes=_say_trajectory,
        capture=_describe_trajectory,
    ),
    StageHook(
        target=f"{LOOP}._generate_one_turn", stage=vocabulary.SAMPLE_TURN, attributes=_say_turn, capture=_answered
    ),
    CallbackHook(target=f"{LOOP}._execute_tool_calls", before=_begin_tools),
    RequestHook(target=f"{LOOP}._post", watch=_begin_post),
    StageHook(
        target=f"{LOOP}._score_group",
        stage=vocabulary.REWARD,
        before=_begin_rewards,
        attributes=_say_rewards,
        after=_scored,
        failed=_rewards_failed,
    ),
)
