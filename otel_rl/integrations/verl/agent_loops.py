"""Rollouts of verl: groups, trajectories and turns in agent loops; calls of servers; rewards.

Source: verl 0.9.1, ``trainer/ppo/v1/agent_loop_tq.py``, ``experimental/agent_loop/agent_loop.py``,
``workers/rollout/llm_server.py``, ``experimental/reward_loop/reward_loop.py``, ``tools/``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from otel_rl import vocabulary
from otel_rl.hooks import Args, CallbackHook, Hook, Kwargs, RequestHook, StageHook
from otel_rl.integrations.verl import prompt_groups
from otel_rl.integrations.verl.prompt_groups import mode_of
from otel_rl.process.carrier import IN_USE
from otel_rl.process.hooked import hooking
from otel_rl.records import Value
from otel_rl.single_controller.sample_groups import count_samples, server_acquired, server_released
from otel_rl.single_controller.served import Answer, Asked, ServedCall
from otel_rl.trace.stage import innermost

AGENT = "verl.experimental.agent_loop"
TOOL_LOOP = f"{AGENT}.tool_agent_loop"
BASE_TOOL = "verl.tools.base_tool:BaseTool"
SERVERS = "verl.workers.rollout.llm_server"
SERVED = frozenset(("prompt_ids", "sampling_params", "request_id"))
"""Keywords of a call by which verl asks any of its rollout servers."""
FINISH = {"aborted": "abort", "completed": ""}
"""What verl calls how an answer ended, and what we do; verl leaves other words as engines say them."""
UNKNOWN_TOOL = "_OTHER"
OF_TRAJECTORY = vocabulary.MODE, vocabulary.GROUP_ID, vocabulary.SAMPLE_ID


def _say_chunk(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    mode = "eval" if args[1].meta_info.get("validate") else "train"
    return {vocabulary.BATCH_SIZE: len(args[1]), vocabulary.MODE: mode}


def _say_trajectory(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    return {**_ids(kwargs), vocabulary.MODE: mode_of(args[2])}


def _ids(said: Mapping[str, Any]) -> dict[str, Value]:
    """Name group and sample; the legacy trainer has no sessions, but a number of each sample in its batch."""
    uid, number = said.get("uid"), said.get("session_id", said.get("priority"))
    if uid is None or number is None:
        return {}
    return {vocabulary.GROUP_ID: str(uid), vocabulary.SAMPLE_ID: f"{uid}_{number}"}


def _generated(args: Args, kwargs: Kwargs) -> None:
    """Count a trajectory that is complete; where a loop has several outputs, each is a sample."""
    outputs = args[1] if isinstance(args[1], list) else [args[1]]
    prompt, written = (sum(len(ids) for ids in found) for found in zip(*map(_token_ids, outputs), strict=True))
    response = sum(sum(output.response_mask) for output in outputs)
    stage = innermost()
    if stage is not None and stage.name == vocabulary.TRAJECTORY:
        stage.set_attribute(vocabulary.TOKENS_PROMPT, prompt)
        stage.set_attribute(vocabulary.TOKENS_RESPONSE, response)
        stage.set_attribute(vocabulary.TOKENS_ENVIRONMENT, written - response)
        stage.set_attributes(_versions([output.extra_fields for output in outputs]))
    if not args[2]:
        count_samples(len(outputs), prompt, response, written - response)


def _token_ids(output: Any) -> tuple[list[int], list[int]]:
    return output.prompt_ids, output.response_ids


def _say_turn(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    """Repeat whose turn it is: servers learn from it whether it is an evaluation's."""
    stage = innermost()
    said = (stage and stage.attributes) or {}
    return {key: said[key] for key in OF_TRAJECTORY if key in said}


def _say_queue(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    return {**_say_turn(args, kwargs), vocabulary.IDLE_REASON: "queue"}


def _answered(args: Args, kwargs: Kwargs, result: Any) -> dict[str, Value]:
    said: dict[str, Value] = {
        vocabulary.TOKENS_PROMPT: len(kwargs["prompt_ids"]),
        vocabulary.TOKENS_RESPONSE: len(result.token_ids),
    }
    return said | _versions([result.extra_fields])


def _versions(fields: list[dict[str, Any]]) -> dict[str, Value]:
    """Return the policy versions of the first and the last token."""
    known = [one for one in fields if one.get("min_global_steps") is not None]
    if not known:
        return {}
    return {
        vocabulary.POLICY_VERSION: min(int(one["min_global_steps"]) for one in known),
        vocabulary.POLICY_VERSION_END: max(int(one["max_global_steps"]) for one in known),
    }


def _count_attempt(args: Args, kwargs: Kwargs) -> None:
    """Count a call that a turn makes again, because a server aborted it to get new weights."""
    turn = innermost()
    if turn is not None and turn.name == vocabulary.SAMPLE_TURN:
        made = (turn.attributes or {}).get(vocabulary.ATTEMPTS, 0)
        turn.set_attribute(vocabulary.ATTEMPTS, int(made) + 1)  # type: ignore[arg-type]


def _acquired(args: Args, kwargs: Kwargs, result: Any) -> None:
    server_acquired(str(result[0]))


def _released(args: Args, kwargs: Kwargs) -> None:
    server_released(str(args[1]))


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


def _say_tool(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    said: dict[str, Value] = {
        vocabulary.OPERATION: vocabulary.EXECUTE_TOOL,
        vocabulary.TOOL_NAME: _tool(args),
        vocabulary.TOOL_TYPE: "function",
    }
    return _say_turn(args, kwargs) | said


def _tool_stage(args: Args, kwargs: Kwargs) -> str:
    return f"{vocabulary.EXECUTE_TOOL} {_tool(args)}"


def _tool(args: Args) -> str:
    """Name the tool that is called; a model also asks for tools that do not exist, in its own words."""
    loop, call, _, agent_data = args[:4]
    name = call.name
    return str(name) if name in getattr(agent_data, "_active_tools", loop.tools) else UNKNOWN_TOOL


def _follow_tool(args: Args, kwargs: Kwargs, result: object) -> None:
    """Hook what the class of a tool overrides of verl's base."""
    hooking.follow(args[0])


def _tool_failed(args: Args, kwargs: Kwargs, error: BaseException) -> None:
    """Let the call of a tool fail with its tool: verl makes an answer for the model of the exception."""
    stage = innermost()
    if stage is not None and stage.name.startswith(f"{vocabulary.EXECUTE_TOOL} "):
        stage.fail(error)


def _say_reward(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    data, scoring = args[1], getattr(args[0].reward_manager, "compute_score", None)
    if isinstance(scoring, functools.partial) and scoring.args:  # verl hands keywords to a user's function
        scoring = scoring.args[0]
    said: dict[str, Value] = {vocabulary.BATCH_SIZE: len(data)}
    if scoring is not None:
        said[vocabulary.REWARD_FUNCTION] = getattr(scoring, "__name__", type(scoring).__name__)
    used = IN_USE.get()
    if used is not None and used.mode:
        said[vocabulary.MODE] = used.mode
    return said | _ids({key: values[0] for key, values in data.non_tensor_batch.items() if len(values)})


HOOKS: tuple[Hook, ...] = (
    StageHook(
        target=f"{AGENT}.agent_loop:AgentLoopWorker.generate_sequences",  # the legacy trainer's
        stage=vocabulary.SAMPLE,
        attributes=_say_chunk,
    ),
    StageHook(
        target=f"{AGENT}.agent_loop:AgentLoopWorker._run_agent_loop",
        stage=vocabulary.TRAJECTORY,
        attributes=_say_trajectory,
    ),
    CallbackHook(target=f"{AGENT}.agent_loop:AgentLoopWorker._agent_loop_postprocess", before=_generated),
    *(
        StageHook(
            target=f"{SERVERS}:{kind}.generate",
            stage=vocabulary.SAMPLE_TURN,
            attributes=_say_turn,
            capture=_answered,
            before=_count_attempt,
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
    StageHook(target=f"{TOOL_LOOP}:ToolAgentLoop._call_tool", stage=_tool_stage, attributes=_say_tool),
    CallbackHook(target=f"{BASE_TOOL}.__init__", after=_follow_tool),
    *(
        CallbackHook(target=target, failed=_tool_failed)
        for target in (
            f"{BASE_TOOL}.create",
            f"{BASE_TOOL}.execute",
            "verl.tools.function_tool:FunctionTool.call",
            f"{TOOL_LOOP}:normalize_function_tool_return",
        )
    ),
    StageHook(
        target="verl.experimental.reward_loop.reward_loop:RewardLoopWorker.compute_score",
        stage=vocabulary.REWARD,
        attributes=_say_reward,
    ),
)
ARRIVING: tuple[Hook, ...] = (
    *prompt_groups.ARRIVING,
    CallbackHook(target="AgentLoopWorkerTQ._agent_loop_postprocess", before=_generated),
    RequestHook(target="*.generate", watch=_begin_serve),
)
