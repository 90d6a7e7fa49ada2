"""The correctness ledger where samples pass from one process to another: what a report compares.

The worker that makes a trajectory notes it under its id, ranks note what they get of it, and the driver looks at
groups. An integration hands over references to the tensors of a batch, which are on the host, and the names of its
samples; the flusher reads them, in 8 ms for 1,024 samples of 4,096 tokens (``observing/samples.py`` says which). What
was read is on disk before a call of Ray returns.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from math import isfinite
from typing import Any, Final

from otel_rl.analysis.checksums import MaskSums
from otel_rl.analysis.ledger import Fault, SampleSums, fault_of_sample
from otel_rl.observing import samples
from otel_rl.observing.samples import LedgerPlace, Made, Rows, chosen, is_readable, later, place_of, sums_of

REWARDS: Final = "rm_scores", "token_level_rewards", "advantages", "returns"
"""Fields whose values must be finite, and which the driver has first."""
NUMBERS: Final = ("rollout_log_probs", "old_log_probs", "ref_log_prob", "values", *REWARDS)
COMPARED: Final = 16
"""Samples of one call whose log-probabilities are compared with those of the rollout."""
TENSORS: Final = ("input_ids", "responses", "response_mask", "attention_mask", *NUMBERS)
OUTPUTS: Final = "log_probs", "values"
"""Fields that a rank computes."""

Batch = dict[str, Any]
IdsOf = Callable[[Batch, dict[str, Rows]], list[str]]
"""``(fields, readable tensors)``: returns the id of each sample."""


def note(boundary: str, function: Callable[..., Made], *arguments: Any) -> None:
    """Let the flusher note something at the current stage: ``function(place, *arguments)``.

    Args:
        boundary: name of the place; empty: the stage is the boundary. Without a stage nothing is noted.
        function: one of those below, or one that calls it.
        arguments: what it reads; tensors of the host must not change meanwhile.
    """
    place = place_of(boundary)
    if place is not None:
        later(function, place, *arguments)


# --- who makes trajectories -------------------------------------------------------------------------------------------


def note_trajectory(place: LedgerPlace, name: str, prompt: Any, response: Any, mask: Any) -> Made:
    """Note a trajectory: token ids of its prompt and response, and which of the latter are trained on."""
    sums = sums_of(len(prompt), len(response), [*prompt, *response], mask)
    yield from samples.samples(place, [name], [sums])
    fault = fault_of_sample(sums)
    if fault is not None:
        yield from samples.mismatch(place, fault, [name])


# --- ranks ------------------------------------------------------------------------------------------------------------


def note_batch(place: LedgerPlace, batch: Batch, ids_of: IdsOf, is_padding: Callable[[str], bool]) -> Made:
    """Note the batch that a rank got: fields by the names of ``TENSORS``, padded or nested."""
    tensors = {key: Rows(batch[key]) for key in TENSORS if is_readable(batch.get(key))}
    ids = ids_of(batch, tensors)
    if {"input_ids", "responses", "response_mask"} <= tensors.keys():
        rows = [row for row in chosen(ids) if not is_padding(ids[row])]
        sums = [_sums(tensors, row) for row in rows]
        yield from samples.samples(place, [ids[row] for row in rows], sums)
        if sums:
            mask = reduce(MaskSums.joined, [one.mask for one in sums])
            misfit = sum(_is_misfit(tensors, key) for key in ("response_mask", *NUMBERS))
            found = {} if misfit else _logprobs(tensors, rows)
            yield from samples.passage(place, len(ids), mask=mask, misfit=misfit, **found)
    yield from samples.mismatch(place, Fault.NONFINITE, _nonfinite(ids, tensors))


def note_outputs(place: LedgerPlace, names: Batch, found: Batch, ids_of: IdsOf) -> Made:
    """Look for NaN and infinity in what a rank computed: fields by the names of ``OUTPUTS``."""
    tensors = rows_of(found)
    yield from samples.mismatch(place, Fault.NONFINITE, _nonfinite(ids_of(names, tensors), tensors))


def note_losses(losses: Sequence[Any]) -> None:
    """Look for NaN and infinity in a rank's own losses."""
    bad = sum(isinstance(one, float) and not isfinite(one) for one in losses)
    if bad:
        note("", _whole, len(losses), bad)


def _whole(place: LedgerPlace, rows: int, nonfinite: int) -> Made:
    return samples.passage(place, rows, nonfinite=nonfinite)


def response_of(tensors: dict[str, Rows], row: int) -> int:
    """Return the number of tokens of a response: all of the row, or those that the mask of a padded sequence says."""
    width = len(tensors["responses"][row])
    if tensors["responses"].offsets is not None or "attention_mask" not in tensors:
        return width
    return int((tensors["attention_mask"][row][-width:] != 0).sum()) if width else 0


def _sums(tensors: dict[str, Rows], row: int) -> SampleSums:
    ids, response = tensors["input_ids"][row], response_of(tensors, row)
    if tensors["input_ids"].offsets is None and "attention_mask" in tensors:
        ids = ids[tensors["attention_mask"][row] != 0]
    return sums_of(len(ids) - response, response, ids, tensors["response_mask"][row])


def _is_misfit(tensors: dict[str, Rows], key: str) -> bool:
    return key in tensors and tensors[key].lengths != tensors["responses"].lengths


def _logprobs(tensors: dict[str, Rows], rows: list[int]) -> dict[str, Any]:
    """Compare log-probabilities where a batch is trained on; asynchronous trainers train on those of older policies."""
    if not {"advantages", "rollout_log_probs", "old_log_probs"} <= tensors.keys():
        return {}
    three = tensors["rollout_log_probs"], tensors["old_log_probs"], tensors["response_mask"]
    pairs = samples.pairs_of(*three, rows[:COMPARED])
    return {} if pairs is None else {"logprobs": pairs.sums, "is_updated": True}


def _nonfinite(ids: list[str], tensors: dict[str, Rows]) -> list[str]:
    numbers = [tensors[key] for key in (*NUMBERS, *OUTPUTS) if key in tensors]
    return [ids[row] for one in numbers for row in one.nonfinite()]


def rows_of(tensors: Batch) -> dict[str, Rows]:
    """Return the rows of the tensors that are on the host."""
    return {key: Rows(one) for key, one in tensors.items() if is_readable(one)}


# --- the driver -------------------------------------------------------------------------------------------------------


def note_prompts(place: LedgerPlace, uids: Iterable[str]) -> Made:
    """Look for a group id that two prompts of one submission have."""
    yield from samples.mismatch(place, Fault.SHARED_GROUP, _more_than(1, uids))


def note_groups(place: LedgerPlace, keys: Sequence[str], groups: Iterable[str], asked: int) -> Made:
    """Look for samples that are in a batch twice, and for groups of more samples than were asked for."""
    yield from samples.mismatch(place, Fault.REPEATED_SAMPLE, _more_than(1, keys))
    yield from samples.mismatch(place, Fault.LARGE_GROUP, _more_than(asked, groups))


def note_compared(place: LedgerPlace, ids: list[str], own: list[str], uids: Any, rewards: Batch) -> Made:
    """Look for samples that are compared with those of another group.

    Args:
        place: where they are compared.
        ids: of the samples.
        own: the group that each belongs to.
        uids: the group that each is compared in.
        rewards: fields by the names of ``REWARDS``.
    """
    known, wrong = set(own), [row for row, uid in enumerate(uids) if uid != own[row]]
    yield from samples.mismatch(place, Fault.SHARED_GROUP, [ids[row] for row in wrong if uids[row] in known])
    yield from samples.mismatch(place, Fault.OTHER_GROUP, [ids[row] for row in wrong if uids[row] not in known])
    yield from samples.mismatch(place, Fault.NONFINITE, _nonfinite(ids, rows_of(rewards)))


def note_grouped(place: LedgerPlace, uids: Any, prompts: Any, asked: int | None, rewards: Batch) -> Made:
    """Look at groups whose samples have no ids: by their prompts, a tensor."""
    large = set(_more_than(asked, uids)) if asked else set()
    if large and is_readable(prompts):
        rows, known = Rows(prompts), defaultdict(set)
        for row, uid in enumerate(uids):
            if uid in large:
                known[uid].add(rows[row].tobytes())
        shared = {uid for uid, found in known.items() if len(found) > 1}
        yield from samples.mismatch(place, Fault.SHARED_GROUP, sorted(shared))
        yield from samples.mismatch(place, Fault.LARGE_GROUP, sorted(large - shared))
    yield from samples.mismatch(place, Fault.NONFINITE, _nonfinite(list(uids), rows_of(rewards)))


def _more_than(most: int, names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > most]
