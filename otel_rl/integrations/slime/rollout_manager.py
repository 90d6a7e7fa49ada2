"""Rollouts of slime and miles: batches, groups, trajectories, turns and rewards, in the process of ``RolloutManager``.

Source: slime 0.3.1 (624b824a) ``slime/ray/rollout.py`` (492, 513), ``slime/rollout/sglang_rollout.py`` (225, 297),
``slime/rollout/fully_async_rollout.py``, ``slime/rollout/rm_hub/__init__.py`` (55, 99), ``slime/utils/http_utils.py``
(291), ``slime/rollout/filter_hub/base_types.py`` (44); miles 0.1.0 (31f1ca96) has the same, and
``miles/rollout/inference_rollout/inference_rollout_common.py`` (58, 137), ``miles/ray/rollout/metrics.py`` (72).

A call of the engines is a turn, whoever makes it: a generate function of the user's own calls the same ``post``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from otel_rl import vocabulary
from otel_rl.hooks import Args, CallbackHook, Hook, Kwargs, StageHook
from otel_rl.hooks.submitted import SubmittedHook
from otel_rl.integrations.slime.own_numbers import has_rewards
from otel_rl.integrations.slime.train_script import rollout_key
from otel_rl.metrics.record import as_number
from otel_rl.process.carrier import IN_USE, Carrier
from otel_rl.process.state import state
from otel_rl.records import Deferred, Measured, Point, Value
from otel_rl.single_controller.reward_records import records_of_rewards
from otel_rl.single_controller.sample_groups import count_dropped, count_samples, of_sample, versions_of
from otel_rl.single_controller.tables import sync_hooks
from otel_rl.trace.stage import innermost

TRAIN, EVAL = ((vocabulary.MODE, "train"),), ((vocabulary.MODE, "eval"),)
GENERATE = "/generate"
FIRST = 1
"""The version of the weights that the engines get before any update."""


# --- batches ----------------------------------------------------------------------------------------------------------


def _submitted(args: Args, kwargs: Kwargs) -> tuple[Carrier | None, str | None]:
    """Name a rollout that is generated ahead of its step, ``generate(self, rollout_id)``; another is part of it."""
    caller, number = IN_USE.get(), int(args[1])
    if caller is None or caller.step.rpartition(" ")[2] == str(number):
        return None, None
    return caller, rollout_key(number)


def _logged(args: Args, kwargs: Kwargs) -> None:
    """Count the samples of a rollout: ``log_rollout_data(rollout_id, args, samples, ...)`` gets all of them."""
    config, samples = args[1], args[2]
    count_samples(len(samples), *_tokens(samples))
    rewards = [as_number(sample.get_reward_value(config)) for sample in samples]
    groups = [-place if sample.group_index is None else sample.group_index for place, sample in enumerate(samples, 1)]
    if rewards and None not in rewards and has_rewards(config):
        state.add(Deferred(_record_rewards, (rewards, groups, state.now())))


def _record_rewards(rewards: list[float], groups: list[int], time_ns: int) -> Iterator[Point | Measured]:
    import numpy as np

    yield from records_of_rewards(np.asarray(rewards, float), np.asarray(groups), time_ns)


def _tokens(samples: list[Any], begun: int = 0) -> tuple[int, int, int]:
    """Return the tokens of samples by who wrote them: their prompts, the policy, their environments.

    Args:
        samples: these.
        begun: as many of each response are not counted.
    """
    prompt, response, written = 0, 0, 0
    for sample in samples:
        length = int(sample.response_length) - begun
        prompt += len(sample.tokens) - begun - length
        response += length
        written += length if sample.loss_mask is None else int(sum(sample.loss_mask[begun:]))
    return prompt, written, response - written


def _dropped(args: Args, kwargs: Kwargs) -> None:
    """Count a group that a filter drops: ``on_dynamic_filter_drop(self, reason)``."""
    count_dropped(1, "filtered", "train")


# --- groups and trajectories ------------------------------------------------------------------------------------------


def _first(samples: Any) -> Any:
    return _first(samples[0]) if isinstance(samples, list) else samples


def _group_submitted(args: Args, kwargs: Kwargs) -> tuple[Carrier | None, str | None]:
    """Name a group that the worker of a fully asynchronous rollout makes: its thread works for no rollout."""
    group = _first(args[1]).group_index
    return None, f"group-{group}" if group is not None and innermost() is None else None


def _say_group(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    """Describe ``generate_and_rm_group(args, group, sampling_params, evaluation)``."""
    return {**_group(_first(args[1])), vocabulary.BATCH_SIZE: len(args[1]), **_mode(kwargs)}


def _group(sample: Any) -> dict[str, Value]:
    return {} if sample.group_index is None else {vocabulary.GROUP_ID: str(sample.group_index)}


def _mode(kwargs: Kwargs) -> dict[str, Value]:
    return {vocabulary.MODE: "eval" if kwargs.get("evaluation") else "train"}


def _say_sample(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    """Describe ``generate_and_rm(args, sample, sampling_params, evaluation)``; samples of evaluations have no group."""
    sample = _first(args[1])
    begun = {vocabulary.TOKENS_RESPONSE: int(sample.response_length)} if sample.response_length else {}
    return {**_group(sample), vocabulary.SAMPLE_ID: str(sample.index), **_mode(kwargs), **begun}


def _trajectory_stage(args: Args, kwargs: Kwargs) -> str | None:
    """Name a call that generates; samples of a partial rollout may be complete, and come back as they are."""
    return None if _first(args[1]).status.value in ("completed", "truncated") else vocabulary.TRAJECTORY


def _made(args: Args, kwargs: Kwargs, result: Any) -> dict[str, Value]:
    """Describe what came of a sample: one, or several that a user's function made of it.

    What a sample of a partial rollout had before counts where it was made.
    """
    samples, stage = result if isinstance(result, list) else [result], innermost()
    begun = (stage.attributes or {}).get(vocabulary.TOKENS_RESPONSE, 0) if stage and result is args[1] else 0
    kinds = vocabulary.TOKENS_PROMPT, vocabulary.TOKENS_RESPONSE, vocabulary.TOKENS_ENVIRONMENT
    said: dict[str, Value] = dict(zip(kinds, _tokens(samples, int(begun)), strict=True))  # type: ignore[arg-type]
    ended = {str(sample.status.value) for sample in samples}
    reasons = tuple(reason for status, reason in (("truncated", "length"), ("aborted", "abort")) if status in ended)
    said |= {vocabulary.FINISH_REASONS: reasons} if reasons else {}
    return said | _versions(version for sample in samples for version in sample.weight_versions)


def _versions(versions: Iterable[Any]) -> dict[str, Value]:
    """Return the policy versions; engines that never got weights have a word."""
    known = [int(version) - FIRST for version in versions if str(version).isdigit()]
    return versions_of([(number, number) for number in known])


# --- turns and rewards ------------------------------------------------------------------------------------------------


def _turn_stage(args: Args, kwargs: Kwargs) -> str | None:
    """Name a call of an engine, ``post(url, payload, ...)``; by others the process asks for other things."""
    return vocabulary.SAMPLE_TURN if str(args[0]).endswith(GENERATE) else None


def _say_turn(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    prompt = args[1].get("input_ids")
    return of_sample(args, kwargs) | ({} if prompt is None else {vocabulary.TOKENS_PROMPT: len(prompt)})


def _answered(args: Args, kwargs: Kwargs, result: Any) -> dict[str, Value]:
    answer = result.get("meta_info") if isinstance(result, dict) else None
    if answer is None or "completion_tokens" not in answer:
        return {}
    said: dict[str, Value] = {vocabulary.TOKENS_RESPONSE: int(answer["completion_tokens"])}
    reason = (answer.get("finish_reason") or {}).get("type")
    return (
        said
        | ({vocabulary.FINISH_REASONS: (str(reason),)} if reason else {})
        | _versions([answer.get("weight_version")])
    )


def _say_reward(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    """Describe ``async_rm(args, sample, **kwargs)``. A sample of slime 0.3.1 or of miles may have its own."""
    config, sample = args[:2]
    known = sample.metadata if isinstance(sample.metadata, dict) else {}
    own = getattr(sample, "reward_spec", None) or sample
    path = getattr(own, "custom_rm_path", None) or config.custom_rm_path
    name = path or getattr(own, "rm_type", None) or known.get("rm_type") or config.rm_type or ""
    return {**of_sample(args, kwargs), vocabulary.REWARD_FUNCTION: str(name).rpartition(".")[2]}


def _batch_stage(args: Args, kwargs: Kwargs) -> str | None:
    """Name rewards of many samples, ``batched_async_rm(args, samples, ...)``, unless each has a call of its own."""
    return None if args[0].custom_rm_path is None else vocabulary.REWARD


def _say_batch(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    name = str(args[0].custom_rm_path).rpartition(".")[2]
    return {**of_sample(args, kwargs), vocabulary.REWARD_FUNCTION: name, vocabulary.BATCH_SIZE: len(args[1])}


def _rollout_hooks(package: str, rollouts: tuple[str, ...], logs: tuple[str, ...]) -> tuple[Hook, ...]:
    rewards = f"{package}.rollout.rm_hub"
    return (
        *(
            SubmittedHook(
                target=f"{module}:generate_and_rm_group",
                stage=vocabulary.SAMPLE_GROUP,
                attributes=_say_group,
                submitted=_group_submitted,
                by_name=True,
            )
            for module in rollouts
        ),
        *(
            StageHook(
                target=f"{module}:generate_and_rm",
                stage=_trajectory_stage,
                attributes=_say_sample,
                capture=_made,
                by_name=True,
            )
            for module in rollouts
        ),
        StageHook(
            target=f"{package}.utils.http_utils:post", stage=_turn_stage, attributes=_say_turn, capture=_answered
        ),
        StageHook(target=f"{rewards}:async_rm", stage=vocabulary.REWARD, attributes=_say_reward),
        StageHook(target=f"{rewards}:batched_async_rm", stage=_batch_stage, attributes=_say_batch),
        CallbackHook(
            target=f"{package}.rollout.filter_hub.base_types:MetricGatherer.on_dynamic_filter_drop", before=_dropped
        ),
        *(CallbackHook(target=log, before=_logged, optional=len(logs) > 1) for log in logs),
    )


SLIME = _rollout_hooks(
    "slime",
    ("slime.rollout.sglang_rollout",),
    ("slime.observability.rollout_metrics:log_rollout_data", "slime.ray.rollout:_log_rollout_data"),
)
MILES = _rollout_hooks(
    "miles",
    ("miles.rollout.sglang_rollout", "miles.rollout.inference_rollout.inference_rollout_common"),
    ("miles.ray.rollout.metrics:log_rollout_data",),
)
ARRIVING: tuple[Hook, ...] = (
    SubmittedHook(target="RolloutManager.generate", stage=vocabulary.SAMPLE, attributes=TRAIN, submitted=_submitted),
    StageHook(target="RolloutManager.eval", stage=vocabulary.EVALUATE, attributes=EVAL),
    *sync_hooks("RolloutManager", "onload", "offload", "onload_weights", "onload_kv"),
)
