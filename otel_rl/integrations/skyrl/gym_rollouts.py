"""Rollouts of SkyRL: groups, trajectories, turns, environments and rewards, in the process of the trainer.

Source: SkyRL 0.4.0, ``train/generators/skyrl_gym_generator.py`` (``agent_loop``, 339), ``train/generators/base.py``,
``backends/skyrl_train/inference_servers/remote_inference_client.py`` (``_generate_single``, 656).

A synchronous trainer generates all groups of a step in one call, whose trajectories lie in the ``rl.sample`` of its
timer. An asynchronous one calls its generator for each group: that is a trace of its own, to which the step that
trains on it links. SkyRL's environments give the reward in their ``step``, beside what their tools answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from otel_rl import vocabulary
from otel_rl.hooks import Args, Hook, Kwargs, StageHook
from otel_rl.hooks.submitted import SubmittedHook
from otel_rl.integrations.skyrl.ray_ppo import (
    CLIENT,
    IN_LOOP,
    ends_of,
    group_key,
    is_asynchronous,
    rollout_weights,
)
from otel_rl.process.carrier import Carrier
from otel_rl.process.state import state
from otel_rl.records import Count, Deferred, Value
from otel_rl.single_controller.driver import driver, journal_now
from otel_rl.single_controller.sample_groups import of_sample, sample_counts
from otel_rl.single_controller.tables import tool_attributes

GENERATOR = "skyrl.train.generators.skyrl_gym_generator:SkyRLGymGenerator"
EVALUATION = "eval"


# --- batches and groups: generate(self, input_batch) ------------------------------------------------------------------


def _is_trained(args: Args) -> bool:
    metadata = args[1].get("batch_metadata")
    return metadata is None or metadata.training_phase != EVALUATION


def _group_stage(args: Args, kwargs: Kwargs) -> str | None:
    """Name a group, which only an asynchronous trainer generates alone."""
    return vocabulary.SAMPLE_GROUP if is_asynchronous(driver.trainer) and _is_trained(args) else None


def _say_group(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    key, version = _key(args), rollout_weights.version
    if version is not None:
        rollout_weights.of_groups[key] = version
    return {vocabulary.GROUP_ID: key, vocabulary.MODE: "train"}


def _key(args: Args) -> str:
    return group_key(args[1]["trajectory_ids"][0].instance_id)


def _submitted(args: Args, kwargs: Kwargs) -> tuple[Carrier | None, str | None]:
    return None, _key(args)


def _generated(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Count samples that are complete, which a step may train on."""
    if _is_trained(args):
        rows = result["prompt_token_ids"], result["response_ids"], result["loss_masks"], ends_of(result)
        state.add(Deferred(_count, rows))


def _failed(args: Args, kwargs: Kwargs, error: BaseException) -> None:
    """Journal a group that failed at once: its task ends the process by ``os._exit``, which loses what waits."""
    if isinstance(error, Exception) and is_asynchronous(driver.trainer):
        journal_now()


def _count(
    prompts: list[list[int]], responses: list[list[int]], masks: list[list[int]], ends: list[bool]
) -> Iterator[Count]:
    """Count samples and tokens, in the flusher; a sample of step-wise training has a row for each turn.

    The mask of a sample that is not trained, because it did not end by itself, has nothing but zeros.
    """
    written = [sum(mask) or len(response) for mask, response in zip(masks, responses, strict=True)]
    begun = sum(len(prompt) for prompt, is_first in zip(prompts, [True, *ends], strict=False) if is_first)
    yield from sample_counts(sum(ends), begun, sum(written), sum(map(len, responses)) - sum(written))


# --- a trajectory -----------------------------------------------------------------------------------------------------


def _say_trajectory(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    """Return whose it is: ``agent_loop(self, ..., trajectory_id=None, cache_salt=None, training_phase="train")``."""
    name = args[7] if len(args) > 7 else None
    said = {vocabulary.MODE: str(args[9]) if len(args) > 9 else "train", **_weights(vocabulary.POLICY_VERSION)}
    if name is not None:
        key = group_key(name.instance_id)
        said |= {vocabulary.GROUP_ID: key, vocabulary.SAMPLE_ID: f"{key}_{name.repetition_id}"}
    return said


def _weights(*names: str) -> dict[str, Value]:
    """Return the version of the engines' weights under some names; nothing before they have any."""
    version = rollout_weights.version
    return {} if version is None else dict.fromkeys(names, version)


def _describe_trajectory(args: Args, kwargs: Kwargs, result: Any) -> dict[str, Value]:
    """Return what became of it; one of step-wise training has an output for each turn."""
    turns = getattr(result, "step_outputs", None) or [result]
    written = sum(sum(turn.loss_mask) for turn in turns)
    return {
        vocabulary.TOKENS_PROMPT: len(turns[0].prompt_ids),
        vocabulary.TOKENS_RESPONSE: written,
        vocabulary.TOKENS_ENVIRONMENT: sum(len(turn.response_ids) for turn in turns) - written,
        vocabulary.FINISH_REASONS: (str(turns[-1].stop_reason),),
        **_weights(vocabulary.POLICY_VERSION_END),
    }


def _say_turn(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    said = _weights(vocabulary.POLICY_VERSION, vocabulary.POLICY_VERSION_END)
    return {**of_sample(args, kwargs), vocabulary.TOKENS_PROMPT: len(args[1]), **said}


def _answered(args: Args, kwargs: Kwargs, result: Any) -> dict[str, Value]:
    return {
        vocabulary.TOKENS_RESPONSE: len(result["response_ids"]),
        vocabulary.FINISH_REASONS: (str(result["stop_reason"]),),
        **_weights(vocabulary.POLICY_VERSION_END),
    }


# --- its environment: _run_in_executor_if_available(self, func, *args, **kwargs) --------------------------------------


def _environment(args: Args) -> tuple[str, str]:
    """Return what is called of an environment, and the name of its class."""
    function = args[1]
    owner = getattr(function, "__self__", None)
    return getattr(function, "__name__", ""), type(getattr(owner, "unwrapped", owner)).__name__


def _is_tool(args: Args) -> bool:
    """Return whether a step may answer: with one turn it only gives the reward."""
    return int(args[0].max_turns) > 1


def _environment_stage(args: Args, kwargs: Kwargs) -> str | None:
    method, name = _environment(args)
    step = f"{vocabulary.EXECUTE_TOOL} {name}" if _is_tool(args) else vocabulary.REWARD
    return {"init": vocabulary.ENVIRONMENT_RESET, "step": step}.get(method)


def _say_environment(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    method, name = _environment(args)
    step = tool_attributes(name) if _is_tool(args) else {vocabulary.REWARD_FUNCTION: name}
    return {**of_sample(args, kwargs), **(step if method == "step" else {})}


HOOKS: tuple[Hook, ...] = (
    SubmittedHook(
        target="skyrl.train.generators.base:GeneratorInterface.generate",
        stage=_group_stage,
        attributes=_say_group,
        submitted=_submitted,
        after=_generated,
        failed=_failed,
        during=IN_LOOP,
    ),
    StageHook(
        target=f"{GENERATOR}.agent_loop",
        stage=vocabulary.TRAJECTORY,
        attributes=_say_trajectory,
        capture=_describe_trajectory,
        during=IN_LOOP,
    ),
    StageHook(
        target=f"{CLIENT}._generate_single",
        stage=vocabulary.SAMPLE_TURN,
        attributes=_say_turn,
        capture=_answered,
        during=IN_LOOP,
    ),
    StageHook(
        target=f"{GENERATOR}._run_in_executor_if_available",
        stage=_environment_stage,
        attributes=_say_environment,
        during=IN_LOOP,
    ),
)
