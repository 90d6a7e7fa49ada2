"""Rollouts of verl: groups, trajectories and turns in agent loops; calls of servers; rewards.

Source: verl 0.9.1, ``trainer/ppo/v1/agent_loop_tq.py``, ``experimental/agent_loop/agent_loop.py``,
``workers/rollout/llm_server.py``, ``experimental/reward_loop/reward_loop.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from otel_rl import vocabulary
from otel_rl.hooks import Args, Hook, Kwargs, StageHook
from otel_rl.records import Value

AGENT = "verl.experimental.agent_loop"
SERVERS = "verl.workers.rollout.llm_server"
SERVED = frozenset(("prompt_ids", "sampling_params", "request_id"))
"""Keywords of a call by which verl asks any of its rollout servers."""


def _mode(trajectory: Any) -> str:
    return "eval" if trajectory["validate"] else "train"


def _say_group(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    prompt, trajectory = args[1], args[3]
    return {vocabulary.GROUP_ID: str(prompt["uid"]), vocabulary.MODE: _mode(trajectory)}


def _say_chunk(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    mode = "eval" if args[1].meta_info.get("validate") else "train"
    return {vocabulary.BATCH_SIZE: len(args[1]), vocabulary.MODE: mode}


def _say_trajectory(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    return {**_ids(kwargs), vocabulary.MODE: _mode(args[2])}


def _ids(said: Mapping[str, Any]) -> dict[str, Value]:
    """Name group and sample; the legacy trainer has no sessions, but a number of each sample in its batch."""
    uid, number = said.get("uid"), said.get("session_id", said.get("priority"))
    if uid is None or number is None:
        return {}
    return {vocabulary.GROUP_ID: str(uid), vocabulary.SAMPLE_ID: f"{uid}_{number}"}


def _answered(args: Args, kwargs: Kwargs, result: Any) -> dict[str, Value]:
    said: dict[str, Value] = {
        vocabulary.TOKENS_PROMPT: len(kwargs["prompt_ids"]),
        vocabulary.TOKENS_RESPONSE: len(result.token_ids),
    }
    first, last = (result.extra_fields.get(f"{end}_global_steps") for end in ("min", "max"))
    if first is not None:
        said |= {vocabulary.POLICY_VERSION: int(first), vocabulary.POLICY_VERSION_END: int(last)}
    return said


def _serve_stage(args: Args, kwargs: Kwargs) -> str | None:
    """Name a call of a rollout server; whatever else is called ``generate`` is none."""
    return vocabulary.SAMPLE_SERVE if kwargs.keys() >= SERVED else None


def _served(args: Args, kwargs: Kwargs, result: Any) -> dict[str, Value]:
    return {
        vocabulary.RESPONSE_ID: str(kwargs["request_id"]),
        vocabulary.TOKENS_PROMPT: len(kwargs["prompt_ids"]),
        vocabulary.TOKENS_RESPONSE: len(result.token_ids),
        vocabulary.FINISH_REASONS: (str(result.stop_reason),),
    }


def _say_tool(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    return {vocabulary.TOOL_NAME: str(args[1].name)}


def _tool_stage(args: Args, kwargs: Kwargs) -> str:
    return f"{vocabulary.EXECUTE_TOOL} {args[1].name}"


def _say_reward(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    data, scoring = args[1], getattr(args[0].reward_manager, "compute_score", None)
    said: dict[str, Value] = {vocabulary.BATCH_SIZE: len(data)}
    if scoring is not None:
        said[vocabulary.REWARD_FUNCTION] = getattr(scoring, "__name__", type(scoring).__name__)
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
    *(
        StageHook(target=f"{SERVERS}:{kind}.generate", stage=vocabulary.SAMPLE_TURN, capture=_answered)
        for kind in ("LLMServerClient", "FullyAsyncLLMServerClient")
    ),
    StageHook(
        target=f"{SERVERS}:LLMServerClient._acquire_server",
        stage=vocabulary.IDLE,
        attributes=((vocabulary.IDLE_REASON, "queue"),),
    ),
    StageHook(target=f"{AGENT}.tool_agent_loop:ToolAgentLoop._call_tool", stage=_tool_stage, attributes=_say_tool),
    StageHook(
        target="verl.experimental.reward_loop.reward_loop:RewardLoopWorker.compute_score",
        stage=vocabulary.REWARD,
        attributes=_say_reward,
    ),
)
ARRIVING: tuple[Hook, ...] = (
    StageHook(target="AgentLoopWorkerTQ._run_prompt", stage=vocabulary.SAMPLE_GROUP, attributes=_say_group),
    StageHook(target="*.generate", stage=_serve_stage, capture=_served),
)
