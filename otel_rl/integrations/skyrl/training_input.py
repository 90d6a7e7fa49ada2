"""Samples and rewards of SkyRL's steps, where its trainer computes advantages: all of them are there, on the host.

Source: SkyRL 0.4.0, ``train/trainer.py`` (``compute_advantages_and_returns``, 1151).
Rows of a batch follow the prompts, and those of one prompt each other. With step-wise training each turn is a row, the
last of which has the reward. Rows at the end may only fill the batch up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from typing import Any

from otel_rl.hooks import Args, CallbackHook, Hook, Kwargs
from otel_rl.integrations.skyrl.ray_ppo import IN_LOOP, TRAINER, group_key
from otel_rl.layers.memory import add_samples
from otel_rl.probes.host_arrays import of_host
from otel_rl.process.state import state
from otel_rl.records import Deferred, Measured, Point
from otel_rl.single_controller import batch_records as kit
from otel_rl.single_controller.reward_records import records_of_rewards
from otel_rl.trace.memory import tracing

FIELDS = {kit.MASK: "loss_mask", kit.SCORES: "rewards", kit.ADVANTAGES: "advantages"}
RESPONSE, ATTENTION = "response_mask", "attention_mask"


def _scored(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Record the samples of a step; with a KL penalty in them, rewards are not those of the environment."""
    trainer = args[0]
    config = trainer.cfg
    fields = {ours: result[theirs] for ours, theirs in FIELDS.items()}
    if config.trainer.algorithm.use_kl_in_reward:
        del fields[kit.SCORES]
    uids = [group_key(uid) for uid in result.metadata["uids"]]
    rows = len(uids) - int(result.metadata.get("pad_size", 0))
    ends = result.metadata.get("is_last_step")
    masks = {name: result[name] for name in (RESPONSE, ATTENTION)}
    limit = int(config.generator.sampling_params.max_generate_length)
    known = uids[:rows], None if ends is None else list(ends)[:rows], limit if config.generator.max_turns == 1 else None
    state.add(Deferred(_records, (tracing.container, known, fields, masks, state.now())))


def _records(
    parent: Any, known: tuple[Any, ...], fields: dict[str, Any], masks: dict[str, Any], time_ns: int
) -> Iterator[Point | Measured]:
    import numpy as np

    groups, ends, limit = known
    arrays = {name: of_host(value)[: len(groups)] for name, value in fields.items()}
    whole, written = (of_host(masks[name])[: len(groups)].sum(1) for name in (ATTENTION, RESPONSE))
    arrays |= {kit.PROMPT_LENGTH: whole - written, kit.RESPONSE_LENGTH: written}
    if ends is None and state.config.sample_records:
        numbers: defaultdict[str, Iterator[int]] = defaultdict(count)
        ids = [f"{group}_{next(numbers[group])}" for group in groups]
        names = kit.BatchNames(ids, groups, [None] * len(groups))
        add_samples(parent, kit.samples_of(names, arrays, limit, time_ns))
    if kit.SCORES in arrays:
        is_scored = np.ones(len(groups), bool) if ends is None else np.array(ends, bool)
        yield from records_of_rewards(arrays[kit.SCORES].sum(1)[is_scored], np.array(groups)[is_scored], time_ns)


HOOKS: tuple[Hook, ...] = (
    CallbackHook(target=f"{TRAINER}.compute_advantages_and_returns", after=_scored, during=IN_LOOP),
)
