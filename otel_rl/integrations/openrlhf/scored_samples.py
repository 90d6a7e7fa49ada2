"""Samples and rewards of OpenRLHF's steps, where its trainer computes advantages: all of them are there, on the host.

Source: OpenRLHF 0.11.2, ``trainer/ppo_utils/experience_maker.py`` (``compute_advantages_and_returns``, 238). A step has
a list of micro-batches. ``index`` names the places of their samples in the order of the prompts, so those of one prompt
follow each other. Masks and advantages are of all tokens but the first. ``response_length`` ends with the policy's last
token, so what an environment wrote after that is counted by the mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from otel_rl import vocabulary
from otel_rl.hooks import Args, Hook, Kwargs, StageHook
from otel_rl.integrations.openrlhf.ppo_trainer import MAKER, progress
from otel_rl.layers.memory import add_samples
from otel_rl.probes.host_arrays import of_host
from otel_rl.process.state import state
from otel_rl.records import Deferred, Measured, Point
from otel_rl.single_controller import batch_records as kit
from otel_rl.single_controller.driver import driver
from otel_rl.single_controller.reward_records import records_of_rewards
from otel_rl.trace.memory import tracing

WHOLE = "whole"
"""The tokens of a sample, without padding."""


def _scored(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Record the samples of a step, which have their advantages now."""
    if driver.trainer is None:
        return
    settings = driver.trainer.args.rollout
    known = int(settings.n_samples_per_prompt), progress.done + 1
    fields = [
        {
            kit.MASK: one.action_mask,
            kit.SCORES: one.info["reward"],
            kit.ADVANTAGES: one.advantages,
            kit.CUT: one.truncated,
            WHOLE: one.total_length,
        }
        for one in result
    ]
    places = [list(one.index) for one in result]
    state.add(Deferred(_records, (tracing.container, known, places, fields, state.now())))


def _records(
    parent: Any, known: tuple[Any, ...], places: list[list[int]], fields: list[dict[str, Any]], time_ns: int
) -> Iterator[Point | Measured]:
    import numpy as np

    group, step = known
    rewards = []
    for indices, micro_batch in zip(places, fields, strict=True):
        arrays = {key: of_host(value) for key, value in micro_batch.items()}
        rewards.append(arrays[kit.SCORES])
        arrays[kit.SCORES] = arrays[kit.SCORES][:, None]
        whole, is_own = arrays.pop(WHOLE), arrays[kit.MASK] != 0
        arrays[kit.PROMPT_LENGTH] = prompt = np.where(is_own.any(1), is_own.argmax(1) + 1, whole)
        arrays[kit.RESPONSE_LENGTH] = whole - prompt
        names = kit.BatchNames(
            [f"{step}-{index}" for index in indices],
            [f"{step}-{index // group}" for index in indices],
            [None] * len(indices),
        )
        if state.config.sample_records:
            add_samples(parent, kit.samples_of(names, arrays, None, time_ns))
    yield from records_of_rewards(np.concatenate(rewards), np.concatenate(places) // group, time_ns)


HOOKS: tuple[Hook, ...] = (
    StageHook(target=f"{MAKER}.compute_advantages_and_returns", stage=vocabulary.ADVANTAGE, after=_scored),
)
