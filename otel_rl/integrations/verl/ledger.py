"""The correctness ledger of verl, where samples pass from one process to another.

The worker of the agent loops notes each trajectory under its id, ranks note what they get of it, and a report compares
the two. The driver looks at groups. In verl these tensors are on the host. The program's thread takes references; the
flusher reads them, in 8 ms for 1,024 samples of 4,096 tokens (``observing/samples.py`` says which). What was read is on
disk before a worker's call returns.

An id is ``UID_SESSION`` with the trainers of V1. A session with several outputs is left out: its ranks do not know them
apart. The legacy trainer has no sessions: there the id is ``UID_CHECKSUM``, of the tokens of the response.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from math import isfinite
from typing import Any, Final
from zlib import crc32

from otel_rl import vocabulary
from otel_rl.analysis.checksums import MaskSums
from otel_rl.analysis.ledger import Fault, SampleSums, fault_of_sample
from otel_rl.hooks import Args, CallbackHook, Hook, Kwargs, Memory
from otel_rl.observing import samples
from otel_rl.observing.samples import LedgerPlace, Made, Rows, chosen, is_readable, later, place_of, sums_of
from otel_rl.trace.stage import current_stage

REWARDS: Final = "rm_scores", "token_level_rewards", "advantages", "returns"
"""Fields whose values must be finite, and which the driver has first."""
NUMBERS: Final = ("rollout_log_probs", "old_log_probs", "ref_log_prob", "values", *REWARDS)
COMPARED: Final = 16
"""Samples of one call whose log-probabilities are compared with those of the rollout."""
TENSORS: Final = ("input_ids", "responses", "response_mask", "attention_mask", *NUMBERS)
OUTPUTS: Final = "log_probs", "values"
NAMES: Final = "uid", "session_id"
TAKEN: Final = frozenset((*NAMES, *TENSORS))
CALLS: Final = vocabulary.LOGPROB, vocabulary.TRAIN, vocabulary.VALUE
PADDING: Final = "pad"
"""With what the ids begin of samples that fill up a batch."""


@dataclass(eq=False)
class VerlLedger(Memory):
    """What this process has read last."""

    seen: int = 0
    """``id()`` of a batch that was noted, until the worker hands it on to another one in this process."""
    names: dict[str, Any] | None = None
    """The fields that name its samples."""
    is_remasked: bool = False
    """This run changes masks by design, and it has been said."""


ledgering = VerlLedger.keep("ledgering")


# --- the worker of the agent loops ------------------------------------------------------------------------------------


def generated(args: Args, kwargs: Kwargs) -> None:
    """Note a trajectory: ``AgentLoopWorker._compute_score(self, outputs, kwargs)``, before its reward is asked for."""
    outputs, said, stage = args[1], args[2], current_stage()
    place = place_of(vocabulary.SAMPLE)
    if stage is None or place is None or (stage.attributes or {}).get(vocabulary.MODE) == "eval":
        return
    if "uid" in said and len(outputs) == 1:
        one = outputs[0]
        tokens = one.prompt_ids, one.response_ids, one.response_mask
        later(_trajectory, place, said["uid"], said.get("session_id"), *tokens)


def _trajectory(place: LedgerPlace, uid: str, session: Any, prompt: Any, response: Any, mask: Any) -> Made:
    name = _name(uid, session, response)
    sums = sums_of(len(prompt), len(response), [*prompt, *response], mask)
    yield from samples.samples(place, [name], [sums])
    fault = fault_of_sample(sums)
    if fault is not None:
        yield from samples.mismatch(place, fault, [name])


def _name(uid: str, session: Any, response: Any) -> str:
    if session is not None:
        return f"{uid}_{session}"
    import numpy as np

    return f"{uid}_{crc32(np.asarray(response, np.int64).tobytes()):08x}"


# --- ranks ------------------------------------------------------------------------------------------------------------


def received(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Note the batch that a rank fetched: ``_meta_to_realdata(meta)``, inside a worker's method."""
    ledgering.seen = id(result)
    _note(result)


def given(args: Args, kwargs: Kwargs) -> None:
    """Note the batch of a call that brings it: ``TrainingWorker.infer_batch(self, data)``, ``.train_mini_batch``."""
    is_seen, ledgering.seen = id(args[1]) == ledgering.seen, 0
    if hasattr(args[1], "batch_size") and not is_seen:  # outside of a worker it is a list of keys
        stage, is_train = current_stage(), "mini_batch_size" in set(args[1].keys())
        known = "" if stage is None else stage.name
        _note(args[1], known if known in CALLS else vocabulary.TRAIN if is_train else vocabulary.VALUE)


def answered(args: Args, kwargs: Kwargs) -> None:
    """Look at what a rank computed: ``_update_meta_with_output(output, meta, func_name)``."""
    place, names = place_of(), ledgering.names
    found = {key: args[0].get(key) for key in set(args[0].keys()).intersection(OUTPUTS)}
    if place is not None and names is not None and found:
        later(_outputs, place, names, found)


def _outputs(place: LedgerPlace, names: dict[str, Any], found: dict[str, Any]) -> Made:
    tensors = {key: Rows(one) for key, one in found.items() if is_readable(one)}
    yield from samples.mismatch(place, Fault.NONFINITE, _nonfinite(_ids(names, tensors), tensors))


def lost(args: Args, kwargs: Kwargs) -> None:
    """Look at a rank's own losses: ``TrainingWorker._postprocess_output(self, output, ..., forward_only)``."""
    losses = args[1].get("loss", ())
    place = place_of()
    if place is not None and not kwargs.get("forward_only"):
        bad = sum(isinstance(one, float) and not isfinite(one) for one in losses)
        if bad:
            later(_whole, place, len(losses), bad)


def _whole(place: LedgerPlace, rows: int, nonfinite: int) -> Made:
    return samples.passage(place, rows, nonfinite=nonfinite)


def _note(data: Any, boundary: str = "") -> None:
    place = place_of(boundary)
    batch = {key: data.get(key) for key in set(data.keys()) & TAKEN}
    is_named = "uid" in batch
    ledgering.names = {key: batch[key] for key in NAMES if key in batch} if is_named else None
    if place is not None and is_named:
        later(_batch, place, batch)


def _batch(place: LedgerPlace, batch: dict[str, Any]) -> Made:
    tensors = {key: Rows(batch[key]) for key in TENSORS if is_readable(batch.get(key))}
    ids = _ids(batch, tensors)
    if {"input_ids", "responses", "response_mask"} <= tensors.keys():
        rows = [row for row in chosen(ids) if not ids[row].startswith(PADDING)]
        sums = [_sums(tensors, row) for row in rows]
        yield from samples.samples(place, [ids[row] for row in rows], sums)
        if sums:
            mask = reduce(MaskSums.joined, [one.mask for one in sums])
            misfit = sum(_is_misfit(tensors, key) for key in ("response_mask", *NUMBERS))
            found = {} if misfit else _logprobs(tensors, rows)
            yield from samples.passage(place, len(ids), mask=mask, misfit=misfit, **found)
    yield from samples.mismatch(place, Fault.NONFINITE, _nonfinite(ids, tensors))


def _ids(batch: dict[str, Any], tensors: dict[str, Rows]) -> list[str]:
    uids = listed(batch["uid"])
    if "session_id" in batch:
        return [_name(uid, session, None) for uid, session in zip(uids, listed(batch["session_id"]), strict=True)]
    if "responses" not in tensors:
        return [str(uid) for uid in uids]
    responses = tensors["responses"]
    return [_name(uid, None, responses[row][: response_of(tensors, row)]) for row, uid in enumerate(uids)]


def listed(values: Any) -> list[Any]:
    """Return the values of a field that is no tensor."""
    try:
        return [vars(one)["_non_tensordict"]["data"] for one in values.tensordicts]  # 0.1 us each
    except (AttributeError, KeyError, TypeError):
        listed: list[Any] = values.tolist()  # 10 us each
        return listed


def response_of(tensors: dict[str, Rows], row: int) -> int:
    """Return the tokens of a response: all of the row, or those that the mask of a padded sequence says."""
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


# --- the driver -------------------------------------------------------------------------------------------------------


def submitted(args: Args, kwargs: Kwargs) -> None:
    """Look for a group id that two prompts have: ``PPOTrainer._submit_batch_to_rollout(self, batch)``."""
    place, uids = place_of(vocabulary.SAMPLE_SUBMIT), args[1].get("uid", None)
    if place is not None and uids is not None:
        later(_prompts, place, uids)


def _prompts(place: LedgerPlace, uids: Any) -> Made:
    yield from samples.mismatch(place, Fault.SHARED_GROUP, _more_than(1, listed(uids)))


def balanced(args: Args, kwargs: Kwargs) -> None:
    """Look at the groups of a batch: ``PPOTrainer._balance_batch(self, batch, ...)``, before samples fill it up."""
    place = place_of(vocabulary.SAMPLE_PROCESS)
    if place is not None:
        later(_groups, place, list(args[1].keys), args[0].config.actor_rollout_ref.rollout.n)


def _groups(place: LedgerPlace, keys: list[str], asked: int) -> Made:
    sessions = {key.rpartition("_")[0] for key in keys}
    yield from samples.mismatch(place, Fault.REPEATED_SAMPLE, _more_than(1, keys))
    groups = [session.rpartition("_")[0] for session in sessions]
    yield from samples.mismatch(place, Fault.LARGE_GROUP, _more_than(asked, groups))


def _more_than(most: int, names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > most]


def compared(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Look at groups that are compared: ``compute_advantage_for_multi_trajectories(data, batch_keys, ...)``."""
    place = place_of(vocabulary.ADVANTAGE)
    if place is None:
        return
    if not ledgering.is_remasked and _is_remasked(kwargs.get("config")):
        ledgering.is_remasked = True
        later(samples.remasked, place)
    later(_compared, place, list(args[1]), result.non_tensor_batch["uid"], _rewards(result))


def _is_remasked(config: Any) -> bool:
    """Return whether samples or tokens are rejected after their log-probabilities were computed."""
    correction = config.get("rollout_correction") if config else None
    return correction is not None and correction.get("rollout_rs") is not None


def _compared(place: LedgerPlace, keys: list[str], uids: Any, rewards: dict[str, Any]) -> Made:
    ids, own = [key.rpartition("_")[0] for key in keys], [key.rsplit("_", 2)[0] for key in keys]
    known, wrong = set(own), [row for row, uid in enumerate(uids) if uid != own[row]]
    yield from samples.mismatch(place, Fault.SHARED_GROUP, [ids[row] for row in wrong if uids[row] in known])
    yield from samples.mismatch(place, Fault.OTHER_GROUP, [ids[row] for row in wrong if uids[row] not in known])
    yield from samples.mismatch(place, Fault.NONFINITE, _nonfinite(ids, _rows(rewards)))


def grouped(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Look at the groups of the legacy trainer: ``compute_advantage(data, ..., num_repeat)``; V1 calls it inside."""
    place, batch = place_of(vocabulary.ADVANTAGE), result.batch
    if place is not None and "prompts" in set(batch.keys()):
        uids = result.non_tensor_batch["uid"]
        later(_grouped, place, uids, batch["prompts"], kwargs.get("num_repeat"), _rewards(result))


def _grouped(place: LedgerPlace, uids: Any, prompts: Any, asked: int | None, rewards: dict[str, Any]) -> Made:
    large = set(_more_than(asked, uids)) if asked else set()
    if large and is_readable(prompts):
        rows, known = Rows(prompts), defaultdict(set)
        for row, uid in enumerate(uids):
            if uid in large:
                known[uid].add(rows[row].tobytes())
        shared = {uid for uid, found in known.items() if len(found) > 1}
        yield from samples.mismatch(place, Fault.SHARED_GROUP, sorted(shared))
        yield from samples.mismatch(place, Fault.LARGE_GROUP, sorted(large - shared))
    yield from samples.mismatch(place, Fault.NONFINITE, _nonfinite(list(uids), _rows(rewards)))


def _rewards(data: Any) -> dict[str, Any]:
    return {key: data.batch[key] for key in set(data.batch.keys()).intersection(REWARDS)}


def _rows(tensors: dict[str, Any]) -> dict[str, Rows]:
    return {key: Rows(one) for key, one in tensors.items() if is_readable(one)}


TRANSFER: Final = "verl.utils.transferqueue_utils"
LEDGER_HOOKS: Final[tuple[Hook, ...]] = (
    CallbackHook(
        target="verl.experimental.agent_loop.agent_loop:AgentLoopWorker._compute_score", before=generated, optional=True
    ),
    CallbackHook(target=f"{TRANSFER}:_meta_to_realdata", after=received, optional=True),
    CallbackHook(target=f"{TRANSFER}:_update_meta_with_output", before=answered, optional=True),
    CallbackHook(target="verl.workers.engine_workers:TrainingWorker._postprocess_output", before=lost, optional=True),
    CallbackHook(
        target="verl.trainer.ppo.v1.utils:compute_advantage_for_multi_trajectories", after=compared, optional=True
    ),
    CallbackHook(target="verl.trainer.ppo.ray_trainer:compute_advantage", after=grouped, optional=True),
)
"""Hooks of functions that have no stage. The table calls ``submitted``, ``balanced`` and ``given`` where it has one."""
