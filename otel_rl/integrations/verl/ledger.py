"""The correctness ledger of verl: where samples pass from one process to another (``single_controller/ledger.py``).

In verl these tensors are on the host. The program's thread takes references; the flusher reads them.

An id is ``UID_SESSION`` with the trainers of V1. A session with several outputs is left out: its ranks do not know them
apart. The legacy trainer has no sessions: there the id is ``UID_CHECKSUM``, of the tokens of the response.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

from otel_rl import vocabulary
from otel_rl.hooks import Args, CallbackHook, Hook, Kwargs, Memory
from otel_rl.integrations.verl import reward_spread
from otel_rl.observing import samples
from otel_rl.observing.samples import Rows
from otel_rl.single_controller import ledger as kit
from otel_rl.trace.stage import current_stage

NAMES: Final = "uid", "session_id"
TAKEN: Final = frozenset((*NAMES, *kit.TENSORS))
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
    is_evaluation = stage is not None and (stage.attributes or {}).get(vocabulary.MODE) == "eval"
    if "uid" in said and len(outputs) == 1 and not is_evaluation:
        (one,), names = outputs, (said["uid"], said.get("session_id"))
        kit.note(vocabulary.SAMPLE, _trajectory, names, one.prompt_ids, one.response_ids, one.response_mask)


def _trajectory(place: Any, names: tuple[str, Any], prompt: Any, response: Any, mask: Any) -> Any:
    return kit.note_trajectory(place, _name(*names, response), prompt, response, mask)


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
    found = {key: args[0].get(key) for key in set(args[0].keys()).intersection(kit.OUTPUTS)}
    if ledgering.names is not None and found:
        kit.note("", kit.note_outputs, ledgering.names, found, _ids)


def lost(args: Args, kwargs: Kwargs) -> None:
    """Look at a rank's own losses: ``TrainingWorker._postprocess_output(self, output, ..., forward_only)``."""
    if not kwargs.get("forward_only"):
        kit.note_losses(args[1].get("loss", ()))


def _note(data: Any, boundary: str = "") -> None:
    batch = {key: data.get(key) for key in set(data.keys()) & TAKEN}
    is_named = "uid" in batch
    ledgering.names = {key: batch[key] for key in NAMES if key in batch} if is_named else None
    if is_named:
        kit.note(boundary, kit.note_batch, batch, _ids, is_padding)


def is_padding(name: str) -> bool:
    """Return whether a sample only fills up the batch."""
    return name.startswith(PADDING)


def _ids(batch: dict[str, Any], tensors: dict[str, Rows]) -> list[str]:
    uids = listed(batch["uid"])
    if "session_id" in batch:
        return [_name(uid, session, None) for uid, session in zip(uids, listed(batch["session_id"]), strict=True)]
    if "responses" not in tensors:
        return [str(uid) for uid in uids]
    responses = tensors["responses"]
    return [_name(uid, None, responses[row][: kit.response_of(tensors, row)]) for row, uid in enumerate(uids)]


def listed(values: Any) -> list[Any]:
    """Return the values of a field that is no tensor."""
    try:
        return [vars(one)["_non_tensordict"]["data"] for one in values.tensordicts]  # 0.1 us each
    except (AttributeError, KeyError, TypeError):
        listed: list[Any] = values.tolist()  # 10 us each
        return listed


# --- the driver -------------------------------------------------------------------------------------------------------


def submitted(args: Args, kwargs: Kwargs) -> None:
    """Look for a group id that two prompts have: ``PPOTrainer._submit_batch_to_rollout(self, batch)``."""
    uids = args[1].get("uid", None)
    if uids is not None:
        kit.note(vocabulary.SAMPLE_SUBMIT, lambda place: kit.note_prompts(place, listed(uids)))


def balanced(args: Args, kwargs: Kwargs) -> None:
    """Look at the groups of a batch: ``PPOTrainer._balance_batch(self, batch, ...)``, before samples fill it up."""
    asked = args[0].config.actor_rollout_ref.rollout.n
    kit.note(vocabulary.SAMPLE_PROCESS, _groups, list(args[1].keys), asked)


def _groups(place: Any, keys: list[str], asked: int) -> Any:
    sessions = {key.rpartition("_")[0] for key in keys}
    return kit.note_groups(place, keys, [session.rpartition("_")[0] for session in sessions], asked)


def compared(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Look at groups that are compared: ``compute_advantage_for_multi_trajectories(data, batch_keys, ...)``."""
    if not ledgering.is_remasked and _is_remasked(kwargs.get("config")):
        ledgering.is_remasked = True
        kit.note(vocabulary.ADVANTAGE, samples.remasked)
    ids, own = [key.rpartition("_")[0] for key in args[1]], [key.rsplit("_", 2)[0] for key in args[1]]
    kit.note(vocabulary.ADVANTAGE, kit.note_compared, ids, own, result.non_tensor_batch["uid"], _rewards(result))


def _is_remasked(config: Any) -> bool:
    """Return whether samples or tokens are rejected after their log-probabilities were computed."""
    correction = config.get("rollout_correction") if config else None
    return correction is not None and correction.get("rollout_rs") is not None


def grouped(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Look at the groups of the legacy trainer: ``compute_advantage(data, ..., num_repeat)``; V1 calls it inside."""
    batch, uids = result.batch, result.non_tensor_batch.get("uid")
    if "prompts" in set(batch.keys()):
        asked = kwargs.get("num_repeat")
        kit.note(vocabulary.ADVANTAGE, kit.note_grouped, uids, batch["prompts"], asked, _rewards(result))


def _rewards(data: Any) -> dict[str, Any]:
    return {key: data.batch[key] for key in set(data.batch.keys()).intersection(kit.REWARDS)}


TRANSFER: Final = "verl.utils.transferqueue_utils"
LEDGER_HOOKS: Final[tuple[Hook, ...]] = (
    CallbackHook(
        target="verl.experimental.agent_loop.agent_loop:AgentLoopWorker._compute_score", before=generated, optional=True
    ),
    CallbackHook(target=f"{TRANSFER}:_meta_to_realdata", after=received, optional=True),
    CallbackHook(target=f"{TRANSFER}:_update_meta_with_output", before=answered, optional=True),
    CallbackHook(target="verl.workers.engine_workers:TrainingWorker._postprocess_output", before=lost, optional=True),
    CallbackHook(
        target="verl.trainer.ppo.v1.utils:compute_advantage_for_multi_trajectories",
        before=reward_spread.scored,
        after=compared,
        optional=True,
    ),
    CallbackHook(
        target="verl.trainer.ppo.ray_trainer:compute_advantage",
        before=reward_spread.scored_by_legacy,
        after=grouped,
        optional=True,
    ),
)
"""Hooks of functions that have no stage. The table calls ``submitted``, ``balanced`` and ``given`` where it has one."""
