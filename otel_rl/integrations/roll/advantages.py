"""Samples and rewards of ROLL's steps, where its driver computes advantages: all of them is there, on the host.

Source: ROLL 0.3.0, ``pipeline/rlvr/rlvr_pipeline.py`` (``compute_advantage``, once for each domain),
``pipeline/agentic/agentic_pipeline.py`` (``agentic_compute_advantage``). Masks are of whole sequences, advantages of
all tokens but the first. The rows of agentic training may be single turns: then a reward counts once, and no row is a
sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from otel_rl.guard import attempt
from otel_rl.hooks import Args, CallbackHook, Hook, Kwargs
from otel_rl.layers.memory import add_samples
from otel_rl.probes.host_arrays import of_host
from otel_rl.process.state import state
from otel_rl.records import Deferred, Measured, Point
from otel_rl.single_controller import batch_records as kit
from otel_rl.single_controller.driver import driver
from otel_rl.single_controller.reward_records import records_of_rewards
from otel_rl.trace.memory import tracing
from otel_rl.trace.values import is_on_host

FINAL, WHOLE, ATTENTION, PROMPT, SCORES, ADVANTAGES = (
    "final_response_mask", "response_mask", "attention_mask", "prompt_mask", "scores", "advantages",
)  # fmt: skip
FIELDS: Final = (FINAL, WHOLE, ATTENTION, PROMPT, SCORES, ADVANTAGES)
TRAJECTORY: Final = "traj_id"


def _scored(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Record the batch of ``compute_advantage(data, ...)``, which has its advantages now."""
    if driver.trainer is None:
        return
    tensors, known = result.batch, result.non_tensor_batch
    fields = {key: tensors[key] for key in FIELDS if key in set(tensors.keys())}
    if not all(map(is_on_host, fields.values())) or not {WHOLE, ATTENTION} <= fields.keys():
        return
    if TRAJECTORY in known:
        ids, groups = list(map(str, known[TRAJECTORY])), list(map(str, known["traj_group_id"]))
        scores = known.get("episode_scores")
    else:
        domains, prompts = known["domain"], tensors["prompt_id"].tolist()
        groups = [f"{domain}-{prompt}" for domain, prompt in zip(domains, prompts, strict=True)]
        ids, scores = [""] * len(groups), None
    is_whole = len(getattr(driver.trainer, "generate_schedulers", ())) < 2  # each domain comes by itself
    limit = attempt("read", "the limit of ROLL's responses", _limit)
    given = ids, groups, scores, fields, limit, is_whole
    state.add(Deferred(_records, (tracing.container, given, state.now())))


def _limit() -> int:
    return int(driver.trainer.pipeline_config.actor_infer.generating_args.max_new_tokens)


def _records(parent: Any, given: tuple[Any, ...], time_ns: int) -> Iterator[Point | Measured]:
    import numpy as np

    ids, groups, scores, fields, limit, is_whole = given
    arrays = {key: of_host(value) for key, value in fields.items()}
    rewards = np.asarray(scores, float) if scores is not None else arrays.get(SCORES)
    if rewards is not None:
        first = np.unique(ids, return_index=True)[1] if any(ids) else np.arange(len(ids))
        for record in records_of_rewards(rewards[first], np.asarray(groups)[first], time_ns):
            if is_whole or isinstance(record, Measured):
                yield record
    if state.config.sample_records and (not any(ids) or len(set(ids)) == len(ids)):
        names = kit.BatchNames(ids, groups, [None] * len(ids))
        add_samples(parent, kit.samples_of(names, _named(arrays, rewards), limit, time_ns))


def _named(arrays: Mapping[str, Any], rewards: Any) -> dict[str, Any]:
    """Name the arrays of a batch as those of other frameworks."""
    attended, response = arrays[ATTENTION] != 0, arrays[WHOLE] != 0
    prompt = arrays[PROMPT] != 0 if PROMPT in arrays else attended & ~response
    found = {
        kit.MASK: arrays.get(FINAL, arrays[WHOLE])[:, 1:],
        kit.PROMPT_LENGTH: prompt.sum(1),
        kit.RESPONSE_LENGTH: (attended & ~prompt).sum(1),
    }
    if rewards is not None:
        found[kit.SCORES] = rewards[:, None]
    if ADVANTAGES in arrays:
        found[kit.ADVANTAGES] = arrays[ADVANTAGES]
    return found


HOOKS: tuple[Hook, ...] = tuple(
    CallbackHook(target=f"roll.pipeline.{target}", after=_scored, optional=True)
    for target in (
        "rlvr.rlvr_pipeline:compute_advantage",
        "rlvr.rlvr_vlm_pipeline:compute_advantage",
        "agentic.agentic_pipeline:agentic_compute_advantage",
    )
)
