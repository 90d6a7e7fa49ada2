"""Rollouts of verl: groups, trajectories and turns in agent loops; calls of servers; rewards.

Source: verl 0.9.1, ``trainer/ppo/v1/agent_loop_tq.py``, ``experimental/agent_loop/agent_loop.py``,
``workers/rollout/llm_server.py``, ``experimental/reward_loop/reward_loop.py``.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from otel_rl import vocabulary
from otel_rl.clock import monotonic_ns
from otel_rl.hooks import Args, CallbackHook, Hook, Kwargs, StageHook
from otel_rl.integrations.verl import prompt_groups
from otel_rl.integrations.verl.prompt_groups import mode_of, prompts
from otel_rl.metrics.record import gauge
from otel_rl.process.carrier import IN_USE
from otel_rl.process.state import state
from otel_rl.records import Count, Value
from otel_rl.requests.queue import Request, record_requests
from otel_rl.trace.stage import innermost
from otel_rl.trace.throughput import ENVIRONMENT, PROMPT, RESPONSE

AGENT = "verl.experimental.agent_loop"
SERVERS = "verl.workers.rollout.llm_server"
SERVED = frozenset(("prompt_ids", "sampling_params", "request_id"))
"""Keywords of a call by which verl asks any of its rollout servers."""
ENGINES = frozenset(("vllm", "sglang"))
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
        state.add(Count(vocabulary.SAMPLES, len(outputs)))
        for kind, tokens in ((PROMPT, prompt), (RESPONSE, response), (ENVIRONMENT, written - response)):
            state.add(Count(vocabulary.SAMPLE_TOKENS, tokens, kind))


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
    """Count a call that a server gets, and name the server."""
    server, turn = str(result[0]), innermost()
    prompts.in_flight[server] += 1
    gauge(vocabulary.IN_FLIGHT, prompts.in_flight[server], (vocabulary.REPLICA, server))
    if turn is not None and turn.name == vocabulary.SAMPLE_TURN:
        turn.set_attribute(vocabulary.REPLICA, server)


def _released(args: Args, kwargs: Kwargs) -> None:
    server = str(args[1])
    if prompts.in_flight[server]:
        prompts.in_flight[server] -= 1
        gauge(vocabulary.IN_FLIGHT, prompts.in_flight[server], (vocabulary.REPLICA, server))


def _serve_stage(args: Args, kwargs: Kwargs) -> str | None:
    """Name a call of a rollout server; whatever else is called ``generate`` is none."""
    return vocabulary.SAMPLE_SERVE if kwargs.keys() >= SERVED else None


def _say_serve(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    used = IN_USE.get()
    mode = {vocabulary.MODE: used.mode} if used is not None and used.mode else {}
    return {vocabulary.RESPONSE_ID: str(kwargs["request_id"]), **mode}


def _served(args: Args, kwargs: Kwargs, result: Any) -> dict[str, Value]:
    """Describe a call; it is the request itself where the engine has no integration that records one."""
    stage = innermost()
    if stage is not None and ENGINES.isdisjoint(sys.modules):
        made = functools.partial(_request, type(args[0]).__name__, stage.began, monotonic_ns())
        record_requests(made, kwargs, result, parent=stage)
    finish = _finish(result)
    return {
        vocabulary.TOKENS_PROMPT: len(kwargs["prompt_ids"]),
        vocabulary.TOKENS_RESPONSE: len(result.token_ids),
        vocabulary.FINISH_REASONS: (finish,),
        **({vocabulary.REQUEST_ABORTED: True} if finish == "abort" else {}),
    }


def _request(engine: str, begun: int, ended: int, asked: Kwargs, answer: Any) -> Iterator[Request]:
    version = answer.extra_fields.get("global_steps")
    yield Request(
        engine,
        begun,
        ended,
        input_tokens=len(asked["prompt_ids"]),
        output_tokens=len(answer.token_ids),
        finish=_finish(answer),
        streamed=True,
        id=str(asked["request_id"]),
        policy_start=-1 if version is None else int(version),
        policy_end=-1 if version is None else int(version),
        preemptions=-1 if answer.num_preempted is None else int(answer.num_preempted),
    )


def _finish(answer: Any) -> str:
    """Return how an answer ended; of one that is ``completed`` verl does not say whether its limit cut it."""
    return "abort" if answer.stop_reason == "aborted" else str(answer.stop_reason or "")


def _say_tool(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    return {**_say_turn(args, kwargs), vocabulary.TOOL_NAME: _tool(args)}


def _tool_stage(args: Args, kwargs: Kwargs) -> str:
    return f"{vocabulary.EXECUTE_TOOL} {_tool(args)}"


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
    StageHook(target=f"{AGENT}.tool_agent_loop:ToolAgentLoop._call_tool", stage=_tool_stage, attributes=_say_tool),
    StageHook(
        target="verl.experimental.reward_loop.reward_loop:RewardLoopWorker.compute_score",
        stage=vocabulary.REWARD,
        attributes=_say_reward,
    ),
)
ARRIVING: tuple[Hook, ...] = (
    *prompt_groups.ARRIVING,
    CallbackHook(target="AgentLoopWorkerTQ._agent_loop_postprocess", before=_generated),
    StageHook(target="*.generate", stage=_serve_stage, attributes=_say_serve, capture=_served),
)
