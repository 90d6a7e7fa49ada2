"""TRL: the samples of a rollout for the log, once they have rewards and advantages.

Source: trl 1.16, ``trainer/grpo_trainer.py`` (``_generate``, 2193; ``_generate_and_score_completions``, 2324). The
training thread keeps references; the flusher reads them. TRL makes tensors of its own of these lists, and changes
neither them nor the rewards and advantages afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from math import isnan, nan
from typing import Any, NamedTuple

from otel_rl.hooks import Args
from otel_rl.integrations.trl.memory import rollouts
from otel_rl.integrations.trl.rewards import Scores
from otel_rl.integrations.trl.rollouts import TRAIN, Sampling
from otel_rl.layers.kept_samples import FinishedSample
from otel_rl.layers.memory import add_samples
from otel_rl.probes import deferred
from otel_rl.probes.host_arrays import of_host
from otel_rl.process.state import state
from otel_rl.records import Deferred
from otel_rl.trace.stage import Stage
from otel_rl.trace.values import is_on_host


class Generated(NamedTuple):
    """Samples of one rollout on this rank, before their rewards."""

    stage: Stage | None
    sampling: Sampling | None
    prompts: Sequence[Sequence[int]]
    responses: Sequence[Sequence[int]]
    masks: Sequence[Sequence[int]] | None
    """Which tokens of a response the policy wrote; None if all."""
    texts: tuple[Sequence[Any], Sequence[Any]] | None = None
    """Prompts and responses as texts or messages."""


class Cutting(NamedTuple):
    """How a trainer knows a response that was cut."""

    stops: frozenset[int]
    masks_truncated: bool
    """Whether a response that was cut is not trained on."""


def keep_generated(stage: Stage | None, sampling: Sampling | None, result: Any) -> None:
    """Keep what ``_generate`` returned; RLOO's has no mask."""
    rollouts.generated = Generated(stage, sampling, result[0], result[1], result[2] if len(result) > 3 else None)


def keep_texts(args: Args) -> None:
    """Keep prompts and responses, as ``_calculate_rewards(self, inputs, prompts, completions, ...)`` gets them."""
    if rollouts.generated is not None:
        rollouts.generated = rollouts.generated._replace(texts=(args[2], args[3]))


def record_samples(trainer: Any, scored: dict[str, Any]) -> None:
    """Let the flusher record the samples of a rollout that was scored."""
    generated, rollouts.generated = rollouts.generated, None
    listed = rollouts.scored.get(TRAIN)
    if generated is None or not listed or not state.config.sample_records:
        return
    scores, advantages, weights = listed[-1], scored["advantages"].detach(), trainer.reward_weights
    stops = frozenset((*trainer.eos_token_ids, trainer._tokenizer.pad_token_id))
    ending = Cutting(stops, bool(trainer.mask_truncated_completions))
    use = partial(_samples, generated, scores, weights if is_on_host(weights) else None, ending)
    if is_on_host(advantages):
        state.add(Deferred(use, ((scores.rewards, advantages),)))
    else:
        deferred.copy(advantages.device.type, (scores.rewards, advantages), use)


def _samples(
    generated: Generated, scores: Scores, weights: Any, ending: Cutting, tensors: tuple[Any, Any]
) -> tuple[()]:
    rewards, advantages = (of_host(tensor).tolist() for tensor in tensors)
    weighted = None if weights is None else of_host(weights).tolist()
    rewards = rewards[: scores.rows]  # the first rank has those of all
    columns = list(zip(*rewards, strict=True))
    unanswered = {  # where a function gave no more NaN than None, all of them are None
        name
        for name, column in zip(scores.functions, columns, strict=True)
        if sum(map(isnan, column)) <= scores.unanswered.get(name, 0)
    }
    made = []
    for row, (prompt, response, advantage) in enumerate(
        zip(generated.prompts, generated.responses, advantages, strict=True)
    ):
        sample = _sample(generated, row, prompt, response, ending)
        sample.advantage = advantage
        values = rewards[row]
        named = zip(scores.functions, values, strict=True)
        sample.rewards = {name: value for name, value in named if not (isnan(value) and name in unanswered)}
        is_scored = not all(map(isnan, values))
        if weighted is not None:
            parts = [value * weight for value, weight in zip(values, weighted, strict=True) if not isnan(value)]
            sample.reward = sum(parts) if is_scored else nan
        if not is_scored:
            sample.discarded = "unscored"  # its advantage is 0
        made.append(sample)
    add_samples(generated.stage, made)
    return ()


def _sample(
    generated: Generated, row: int, prompt: Sequence[int], response: Sequence[int], ending: Cutting
) -> FinishedSample:
    sampling, mask = generated.sampling, None if generated.masks is None else generated.masks[row]
    name, group = ("", "") if sampling is None else sampling.place(row, len(generated.responses))
    written = len(response) if mask is None else sum(mask)
    is_cut = bool(response) and response[-1] not in ending.stops
    sample = FinishedSample(
        name,
        group,
        prompt_tokens=len(prompt),
        response_tokens=written,
        environment_tokens=None if mask is None else len(response) - written,
        turns=1 if mask is None else sum(now > before for before, now in pairwise((0, *mask))),
        finish="length" if is_cut else "stop",
        policy_version=None if sampling is None else sampling.policy,
        discarded="truncated" if is_cut and ending.masks_truncated else "",
        time_ns=state.now() if generated.stage is None else generated.stage.end_ns,
    )
    if generated.texts is not None:
        prompts, responses = generated.texts
        if not isinstance(responses[row], str):
            sample.tool_calls = sum(message.get("role") == "tool" for message in responses[row])
        if state.config.capture_content:
            sample.prompt, sample.response = prompts[row], responses[row]
    return sample
