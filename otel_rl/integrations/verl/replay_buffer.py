"""Replay buffers of verl: how many groups wait, which of them a step takes, and how old their weights are.

Source: verl 0.9.1, ``trainer/ppo/v1/replay_buffer.py``. A version of the policy is the number of the step after which
its weights were synced: a step trains the version before its own number (``_compute_metrics`` of ``trainer_base.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from otel_rl import vocabulary
from otel_rl.hooks import Args, CallbackHook, Hook, Kwargs, StageHook
from otel_rl.records import Value
from otel_rl.single_controller.sample_groups import QUEUE, count_dropped, lags_of, link_groups, show_groups

BUFFER = "verl.trainer.ppo.v1.replay_buffer"
PARTITIONS = {"train": "train", "val": "eval"}
STATES = {"pending": "pending", "running": "running", "finished": "finished", "failure": "failed"}
DROPPED = {
    "off_policy/evicted_samples": "stale",
    "filter_groups/evicted_samples": "filtered",
    "rollout_failure/evicted_samples": "failed",
    "filter_groups/discarded_surplus_samples": "surplus",
}
"""How the names of verl's counters of groups end, and why each was dropped."""


def is_apart(trainer_mode: str) -> bool:
    """Return whether the trainer of this mode lets groups outlive the step that submits them."""
    return trainer_mode != "sync"


def rows_of(batch: Any) -> dict[str, Value]:
    """Count samples and tokens by the tags of a batch, whose values are elsewhere; padding repeats samples.

    Tags do not say which tokens of a response the policy generated, and which a tool wrote. A batch of the legacy
    trainer has no tags, and its values are here.
    """
    if not hasattr(batch, "tags"):
        return {vocabulary.BATCH_SIZE: len(batch)} | _tokens_of(batch.batch)
    tags = [tag for tag in batch.tags if not tag.get("is_padding")]
    said: dict[str, Value] = {vocabulary.BATCH_SIZE: len(tags)}
    if tags and all("prompt_len" in tag for tag in tags):
        said[vocabulary.TOKENS_PROMPT] = prompt = sum(tag["prompt_len"] for tag in tags)
        said[vocabulary.TOKENS] = prompt + sum(tag["response_len"] for tag in tags)
    return said


def _tokens_of(tensors: Any) -> dict[str, Value]:
    """Count the tokens of tensors that are on the host."""
    if tensors is None or "responses" not in tensors.keys():  # noqa: SIM118 - a TensorDict refuses `in`
        return {}
    mask, longest = tensors["attention_mask"], tensors["responses"].shape[1]
    tokens, written = int(mask.sum()), int(mask[:, -longest:].sum())
    said: dict[str, Value] = {vocabulary.TOKENS: tokens, vocabulary.TOKENS_PROMPT: tokens - written}
    if "response_mask" in tensors.keys():  # noqa: SIM118 - a TensorDict refuses `in`
        response = int(tensors["response_mask"].sum())
        said |= {vocabulary.TOKENS_RESPONSE: response, vocabulary.TOKENS_ENVIRONMENT: written - response}
    return said


def _sampled(args: Args, kwargs: Kwargs, result: Any) -> dict[str, Value]:
    said, (buffer, step, partition), batch = rows_of(result[0]), args[:3], result[0]
    if partition == "train":
        lags = dict(_lags(batch, step - 1))
        if lags:
            said |= lags_of(lags.values(), step - 1)
        if is_apart(buffer.trainer_mode):  # the key of a sample begins with the uid of its prompt
            link_groups((key.rsplit("_", 2)[0], lags.get(key)) for key in batch.keys)
    return said


def _lags(batch: Any, newest: int) -> Iterator[tuple[str, int]]:
    """Yield how many versions older than the newest each sample's first token is, as far as servers tell theirs."""
    for key, tag in zip(batch.keys, batch.tags, strict=True):
        oldest = tag.get("min_global_steps")
        if oldest is not None:
            yield key, newest - int(oldest)


def _count_dropped(args: Args, kwargs: Kwargs, result: Any) -> None:
    partition = args[2]
    for name, value in result[1].items():
        reason = DROPPED.get(name.partition("/")[2])
        if reason:
            count_dropped(int(value), reason, PARTITIONS[partition])


def _count_groups(args: Args, kwargs: Kwargs, result: object) -> None:
    """Record how many groups are in which state: a buffer asks for that at each poll."""
    for partition, mode in PARTITIONS.items():
        numbers = {state: len(getattr(args[0], f"{name}_keys").get(partition, ())) for name, state in STATES.items()}
        if partition == "train" or any(numbers.values()):
            show_groups(numbers, mode)


def _sampling(kind: str, **more: Any) -> Hook:
    """Record the wait for samples, of which verl asks every two seconds."""
    target = f"{BUFFER}:{kind}.sample"
    return StageHook(target=target, stage=vocabulary.IDLE, attributes=(QUEUE,), capture=_sampled, **more)


HOOKS: tuple[Hook, ...] = (
    _sampling("ReplayBuffer", after=_count_dropped),
    _sampling("ReplayBufferAsync"),
    CallbackHook(
        target=f"{BUFFER}:ReplayBufferAsync.wait_for_sampleable", after=_count_dropped, optional=True
    ),  # since 0.9.1
    CallbackHook(
        target=f"{BUFFER}:ReplayBuffer._sync_metadata_from_transfer_queue", after=_count_groups, optional=True
    ),
)
