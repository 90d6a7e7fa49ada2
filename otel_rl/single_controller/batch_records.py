"""Records of the samples that a driver trains on, of the tensors of its batch: on the host, read by the flusher."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from otel_rl.layers.kept_samples import FinishedSample
from otel_rl.layers.memory import add_samples
from otel_rl.probes.host_arrays import of_host
from otel_rl.process.state import state
from otel_rl.records import Deferred
from otel_rl.trace.memory import tracing
from otel_rl.trace.values import is_on_host

MASK, SCORES, ADVANTAGES, RESPONSES, ATTENTION = (
    "response_mask", "token_level_scores", "advantages", "responses", "attention_mask",
)  # fmt: skip
PROMPT_LENGTH, RESPONSE_LENGTH, CUT = "prompt_length", "response_length", "truncated"
FIELDS: Final = (MASK, SCORES, ADVANTAGES, RESPONSES, ATTENTION, PROMPT_LENGTH, RESPONSE_LENGTH, CUT)
"""Fields of a batch, padded, whose names frameworks that descend from verl share; ``CUT`` counts before a limit."""


class BatchNames(NamedTuple):
    """What is known of each sample of a batch beside its tensors."""

    ids: Sequence[str]
    groups: Sequence[str]
    versions: Sequence[int | None]


def record_batch(names: BatchNames, batch: Mapping[str, Any], limit: int | None) -> None:
    """Let the flusher record the samples of a batch, in the open step.

    Args:
        names: of the samples.
        batch: fields by the names of ``FIELDS``, as far as they are there; tensors must not change meanwhile.
        limit: most tokens of a response.
    """
    if state.config.sample_records and all(map(is_on_host, batch.values())):
        state.add(Deferred(_samples, (tracing.container, names, dict(batch), limit, state.now())))


def _samples(parent: Any, names: BatchNames, batch: dict[str, Any], limit: int | None, time_ns: int) -> tuple[()]:
    arrays = {key: of_host(value) for key, value in batch.items()}
    add_samples(parent, samples_of(names, arrays, limit, time_ns))
    return ()


def samples_of(
    names: BatchNames, arrays: Mapping[str, Any], limit: int | None, time_ns: int
) -> Iterator[FinishedSample]:
    """Make the samples of a batch, of arrays by the names of ``FIELDS``; used by the flusher only."""
    import numpy as np

    mask = arrays[MASK] != 0
    written = mask.sum(1)
    if RESPONSE_LENGTH in arrays:
        prompts, lengths = arrays[PROMPT_LENGTH].astype(int), arrays[RESPONSE_LENGTH].astype(int)
    else:
        width, attended = arrays[RESPONSES].shape[1], arrays[ATTENTION] != 0
        prompts, lengths = attended[:, :-width].sum(1), attended[:, -width:].sum(1)
    turns = (np.diff(mask.astype(np.int8), axis=1, prepend=0) == 1).sum(1)
    cut = arrays.get(CUT, lengths >= (np.inf if limit is None else limit))
    scores = arrays[SCORES].sum(1) if SCORES in arrays else None
    advantages = (arrays[ADVANTAGES] * mask).sum(1) / np.maximum(written, 1) if ADVANTAGES in arrays else None
    for row in range(len(mask)):
        length = int(lengths[row])
        yield FinishedSample(
            names.ids[row],
            names.groups[row],
            reward=None if scores is None else float(scores[row]),
            advantage=None if advantages is None else float(advantages[row]),
            prompt_tokens=int(prompts[row]),
            response_tokens=int(written[row]),
            environment_tokens=length - int(written[row]),
            turns=int(turns[row]),
            finish="abort" if not length else "length" if cut[row] else "",
            policy_version=names.versions[row],
            discarded="" if written[row] else "rejected" if length else "failed",
            time_ns=time_ns,
        )
