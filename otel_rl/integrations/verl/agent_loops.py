"""Rollouts of verl: groups, trajectories and turns in agent loops; calls of servers; rewards.

Source: verl 0.9.1, ``trainer/ppo/v1/agent_loop_tq.py``, ``experimental/agent_loop/agent_loop.py``,
``workers/rollout/llm_server.py``, ``experimental/reward_loop/reward_loop.py``, ``tools/``.

A group is what an agent loop makes of one prompt. The synchronous trainer waits for its groups, so they are below the
span that submitted them. Those of the asynchronous ones may outlive a step: each is a trace of its own, whose key is
the uid of its prompt. Evaluations wait for theirs, whatever the trainer.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from otel_rl import vocabulary
from otel_rl.hooks import Args, CallbackHook, Hook, Kwargs, RequestHook, StageHook
from otel_rl.hooks.submitted import SubmittedHook
from otel_rl.integrations.verl.replay_buffer import is_apart
from otel_rl.process.carrier import IN_USE, Carrier
from otel_rl.records import Value
from otel_rl.single_controller import sample_groups as kit
from otel_rl.single_controller.served import Answer, Asked, ServedCall
from otel_rl.single_controller.tables import follow_made, tool_failed, tool_hook
from otel_rl.trace.stage import innermost

LOOP = "verl.experimental.agent_loop.agent_loop:AgentLoopWorker"
TOOL_LOOP = "verl.experimental.agent_loop.tool_agent_loop"
REWARDS = "verl.experimental.reward_loop.reward_loop:RewardLoopWorker"
BASE_TOOL = "verl.tools.base_tool:BaseTool"
SERVERS = "verl.workers.rollout.llm_server"
SERVED = frozenset(("prompt_ids", "sampling_params", "request_id"))
"""Keywords of a call by which verl asks any of its rollout servers."""
FINISH = {"aborted": "abort", "completed": ""}
"""What verl calls how an answer ended, and what we do; verl leaves other words as engines say them."""
UNKNOWN_TOOL = "_OTHER"


# --- groups -----------------------------------------------------------------------------------------------------------


def _mode_of(trajectory: Any) -> str:
    return "eval" if trajectory["validate"] else "train"


def _say_group(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    return {vocabulary.GROUP_ID: str(args[1]["uid"]), vocabulary.MODE: _mode_of(args[3])}


def _remember(args: Args, kwargs: Kwargs) -> None:
    kit.remember_submitted(map(str, args[1]["uid"]))


def _submitted(args: Args, kwargs: Kwargs) -> tuple[Carrier | None, str | None]:
    worker, prompt, _, trajectory = args[:4]
    uid = str(prompt["uid"])
    has_own = not trajectory["validate"] and is_apart(worker.config.trainer.v1.trainer_mode)
    return kit.groups.submitted.pop(uid, None), uid if has_own else None


# --- trajectories, turns and rewards ----------------------------------------------------------------------------------


def _say_chunk(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    mode = "eval" if args[1].meta_info.get("validate") else "train"
    return {vocabulary.BATCH_SIZE: len(args[1]), vocabulary.MODE: mode}


def _say_trajectory(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    return {**_ids(kwargs), vocabulary.MODE: _mode_of(args[2])}


def _ids(said: Mapping[str, Any]) -> dict[str, Value]:
    """Name group and sample; the legacy trainer has no sessions, but a number of each sample in its batch."""
    uid, number = said.get("uid"), said.get("session_id", said.get("priority"))
    if uid is None or number is None:
        return {}
    return {vocabulary.GROUP_ID: str(uid), vocabulary.SAMPLE_ID: f"{uid}_{number}"}


def _generated(args: Args, kwargs: Kwargs) -> None:
    """Count a trajectory that is complete; where a loop has several outputs, each is a sample."""
    outputs = args[1] if isinstance(args[1], list) else [args[1]]
    prompt, written = (sum(len(getattr(one, key)) for one in outputs) for key in ("prompt_ids", "response_ids"))
    response = sum(sum(output.response_mask) for output in outputs)
    counted: dict[str, Value] = {
        vocabulary.TOKENS_PROMPT: prompt,
        vocabulary.TOKENS_RESPONSE: response,
        vocabulary.TOKENS_ENVIRONMENT: written - response,
    }
    stage = innermost()
    if stage is not None and stage.name == vocabulary.TRAJECTORY:
        stage.set_attributes(counted | _versions(outputs))
    if not args[2]:
        kit.count_samples(len(outputs), prompt, response, written - response)


def _say_queue(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    return {**kit.of_sample(args, kwargs), vocabulary.IDLE_REASON: "queue"}


def _answered(args: Args, kwargs: Kwargs, result: Any) -> dict[str, Value]:
    prompt, response = len(kwargs["prompt_ids"]), len(result.token_ids)
    return {vocabulary.TOKENS_PROMPT: prompt, vocabulary.TOKENS_RESPONSE: response} | _versions([result])


def _versions(outputs: list[Any]) -> dict[str, Value]:
    fields = [output.extra_fields for output in outputs]
    known = (one for one in fields if one.get("min_global_steps") is not None)
    return kit.versions_of((int(one["min_global_steps"]), int(one["max_global_steps"])) for one in known)


def _acquired(args: Args, kwargs: Kwargs, result: Any) -> None:
    kit.server_acquired(str(result[0]))


def _released(args: Args, kwargs: Kwargs) -> None:
    kit.server_released(str(args[1]))


def _begin_serve(args: Args, kwargs: Kwargs) -> ServedCall | None:
    """Begin a call of a rollout server; whatever else is called ``generate`` is none, nor is a base's inside of it."""
    caller = innermost()
    if not kwargs.keys() >= SERVED or (caller is not None and caller.name == vocabulary.SAMPLE_SERVE):
        return None
    asked = Asked(type(args[0]).__name__, str(kwargs["request_id"]), len(kwargs["prompt_ids"]))
    return ServedCall(asked, _answers)


def _answers(result: Any) -> tuple[Answer]:
    version, preempted = result.extra_fields.get("global_steps"), result.num_preempted
    policy, preemptions = (-1 if number is None else int(number) for number in (version, preempted))
    return (Answer(len(result.token_ids), _finish(result), policy, preemptions),)


def _finish(answer: Any) -> str:
    """Return how an answer ended, empty if unknown: verl says ``completed`` whether its limit cut it or not."""
    word = str(answer.stop_reason or "")
    return FINISH.get(word, word)


def _tool(args: Args) -> str:
    """Name the tool that is called; a model also asks for tools that do not exist, in its own words."""
    loop, call, _, agent_data = args[:4]
    name = call.name
    return str(name) if name in getattr(agent_data, "_active_tools", loop.tools) else UNKNOWN_TOOL


def _say_reward(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    data, scoring = args[1], getattr(args[0].reward_manager, "compute_score", None)
    if isinstance(scoring, functools.partial) and scoring.args:  # verl hands keywords to a user's function
        scoring = scoring.args[0]
    said: dict[str, Value] = {vocabulary.BATCH_SIZE: len(data)}
    if data.batch is not None and "attention_mask" in set(data.batch.keys()):
        said[vocabulary.TOKENS] = int(data.batch["attention_mask"].sum())
    if scoring is not None:
        said[vocabulary.REWARD_FUNCTION] = getattr(scoring, "__name__", type(scoring).__name__)
    used = IN_USE.get()
    if used is not None and used.mode:
        said[vocabulary.MODE] = used.mode
    return said | _ids({key: values[0] for key, values in data.non_tensor_batch.items() if len(values)})


HOOKS: tuple[Hook, ...] = (
    StageHook(target=f"{LOOP}.generate_sequences", stage=vocabulary.SAMPLE, attributes=_say_chunk),  # the legacy one
    StageHook(target=f"{LOOP}._run_agent_loop", stage=vocabulary.TRAJECTORY, attributes=_say_trajectory),
    CallbackHook(target=f"{LOOP}._agent_loop_postprocess", before=_generated),
    *(
        StageHook(
            target=f"{SERVERS}:{kind}.generate",
            stage=vocabulary.SAMPLE_TURN,
            attributes=kit.of_sample,
            capture=_answered,
            before=kit.count_attempt,
        )
        for kind in ("LLMServerClient", "FullyAsyncLLMServerClient")
    ),
    StageHook(
        target=f"{SERVERS}:LLMServerClient._acquire_server",
        stage=vocabulary.IDLE,
        attributes=_say_queue,
        after=_acquired,
    ),
    CallbackHook(target=f"{SERVERS}:LLMServerClient._release_server", before=_released),
    tool_hook(f"{TOOL_LOOP}:ToolAgentLoop._call_tool", _tool, kit.of_sample),
    CallbackHook(target=f"{BASE_TOOL}.__init__", after=follow_made),
    *(
        CallbackHook(target=target, failed=tool_failed)
        for target in (
            f"{BASE_TOOL}.create",
            f"{BASE_TOOL}.execute",
            "verl.tools.function_tool:FunctionTool.call",
            f"{TOOL_LOOP}:normalize_function_tool_return",
        )
    ),
    StageHook(target=f"{REWARDS}.compute_score", stage=vocabulary.REWARD, attributes=_say_reward),
)
ARRIVING: tuple[Hook, ...] = (
    CallbackHook(target="AgentLoopWorkerTQ.generate_sequences", before=_remember),
    SubmittedHook(
        target="AgentLoopWorkerTQ._run_prompt",
        stage=vocabulary.SAMPLE_GROUP,
        attributes=_say_group,
        submitted=_submitted,
    ),
    CallbackHook(target="AgentLoopWorkerTQ._agent_loop_postprocess", before=_generated),
    RequestHook(target="*.generate", watch=_begin_serve),
)
