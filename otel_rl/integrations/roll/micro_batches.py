"""Micro-batches of ROLL on a rank: what its FSDP2 strategies train and score.

Source: ROLL 0.3.0, ``distributed/strategy/fsdp2_strategy.py`` (``train_step``, 1565; ``_fsdp2_forward``, 1209). A
forward gets no mask of the responses, but the micro-batches of an update are its rows, one after the other. Ranks that
split sequences (Ulysses, ``cp_size``) get the same micro-batch.
"""

from __future__ import annotations

from typing import Any

from otel_rl import vocabulary
from otel_rl.hooks import Args, CallbackHook, Hook, Kwargs, PendingAttributes, StageHook, deferred
from otel_rl.integrations.roll.batches import rows_of
from otel_rl.observing.network import Network
from otel_rl.records import Value
from otel_rl.single_controller.micro_batches import (
    Masks,
    begin_update,
    count_forward,
    describe_masks,
    has_adapters,
    is_updating,
    keep_network,
    network_of,
    next_masks,
    show_mask,
    stage_of_forward,
)

FSDP2 = "roll.distributed.strategy.fsdp2_strategy"
MEGATRON = "roll.distributed.strategy.megatron_strategy:MegatronTrainStrategy"
MASKS = "attention_mask", "response_mask", "prompt_mask"


def _read_network(args: Args, kwargs: Kwargs) -> None:
    """Read a network before it is sharded: ``initialize_fsdp2_model(self, model)``."""
    keep_network(args[0], args[1], _ranks(args[0]))


def _network(strategy: Any) -> Network:
    return network_of(strategy, strategy.model, _ranks(strategy))


def _ranks(strategy: Any) -> int:
    return int(strategy.worker.rank_info.cp_size)


# --- updates: train_step(self, batch, loss_func) ----------------------------------------------------------------------


def _say_update(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    return rows_of(args[1])


def _begin_update(args: Args, kwargs: Kwargs) -> None:
    tensors = args[1].batch
    known = set(tensors.keys())
    begin_update(Masks(*(tensors[key] if key in known else None for key in MASKS)) if MASKS[0] in known else None)


def _end_update(args: Args, kwargs: Kwargs, result: object) -> None:
    """Take what has come from the device: ROLL has waited for it, and the next update may be far."""
    begin_update(None)
    deferred.resolve()


# --- forwards: _fsdp2_forward(self, input_ids, attention_mask, position_ids, forward_args) ----------------------------


def _say_forward(args: Args, kwargs: Kwargs) -> PendingAttributes:
    return describe_masks(next_masks(len(args[1])) or Masks(args[2]))


def _forward_made(args: Args, kwargs: Kwargs, result: Any) -> None:
    count_forward(_network(args[0]).shared_by)


def _show_forward(args: Args, kwargs: Kwargs, result: Any) -> None:
    strategy, seen = args[0], _network(args[0])
    show_mask(args[2], seen, result, is_trained=is_updating(), has_adapters=has_adapters(strategy.model, seen))


HOOKS: tuple[Hook, ...] = (
    StageHook(
        target=f"{FSDP2}:FSDP2TrainStrategy.train_step",
        stage=vocabulary.MINI_BATCH,
        attributes=_say_update,
        before=_begin_update,
        after=_end_update,
        optional=True,
    ),
    StageHook(
        target=f"{MEGATRON}.train_step",
        stage=vocabulary.MINI_BATCH,
        attributes=_say_update,
        optional=True,
    ),
    CallbackHook(target=f"{FSDP2}:FSDP2InferStrategy.initialize_fsdp2_model", before=_read_network, optional=True),
    StageHook(
        target=f"{FSDP2}:FSDP2InferStrategy._fsdp2_forward",
        stage=stage_of_forward,
        attributes=_say_forward,
        capture=_forward_made,
        after=_show_forward,
        optional=True,
    ),
    StageHook(target=f"{FSDP2}:FSDP2TrainStrategy._clip_grad_norm", stage=vocabulary.CLIP, optional=True),
)
