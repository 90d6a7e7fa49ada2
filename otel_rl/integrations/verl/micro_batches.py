"""Micro-batches of verl on a rank: which of their fields hold tokens and lengths.

Source: verl 0.9.1, ``workers/engine/fsdp/transformer_impl.py`` (``_build_fsdp_module``, 385; ``forward_step``, 1549).
Until its forward a micro-batch is on the host. Actor, reference and critic have an engine each. Ranks that split
sequences (Ulysses) get the same micro-batch.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any, Final

from otel_rl.hooks import Args, Kwargs, PendingAttributes
from otel_rl.integrations.verl.ledger import PADDING, listed
from otel_rl.observing.network import Network
from otel_rl.observing.samples import Rows, is_readable
from otel_rl.single_controller.ledger import response_of
from otel_rl.single_controller.micro_batches import (
    Row,
    TokenCounts,
    count_forward,
    count_rows,
    describe_rows,
    has_adapters,
    keep_network,
    network_of,
    show_lengths,
)

TENSORS: Final = frozenset(("input_ids", "responses", "loss_mask", "attention_mask"))
TAKEN: Final = frozenset((*TENSORS, "uid"))
IS_PACKED: Final = "use_remove_padding"


def read_network(args: Args, kwargs: Kwargs) -> None:
    """Read a network before it is sharded: ``FSDPEngine._build_fsdp_module(self, module)``."""
    keep_network(args[0], args[1], _ranks(args[0]))


def _network(engine: Any) -> Network:
    return network_of(engine, engine.module, _ranks(engine))


def _ranks(engine: Any) -> int:
    return int(getattr(engine, "ulysses_sequence_parallel_size", 1))


def say_forward(args: Args, kwargs: Kwargs) -> PendingAttributes:
    """Describe a micro-batch: ``forward_step(self, micro_batch, loss_function, forward_only)``."""
    batch = args[1]
    is_packed = IS_PACKED not in set(batch.keys()) or bool(batch[IS_PACKED])
    return describe_rows(len(batch), partial(count_tokens, _taken(batch), is_packed=is_packed))


def forward_made(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Count the tokens of a training forward that has returned."""
    count_forward(_network(args[0]).shared_by)


def show_forward(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Show any forward of a step for its FLOPs."""
    engine, seen = args[0], _network(args[0])
    is_on = has_adapters(engine.module, seen)
    show_lengths(partial(_lengths, _taken(args[1])), seen, result[0], is_trained=not args[3], has_adapters=is_on)


def _taken(data: Any) -> dict[str, Any]:
    found = {key: data.get(key) for key in TAKEN.intersection(data.keys())}
    return {key: one for key, one in found.items() if key not in TENSORS or is_readable(one)}


# --- in the flusher ---------------------------------------------------------------------------------------------------


def count_tokens(batch: dict[str, Any], *, is_packed: bool) -> TokenCounts | None:
    """Count the tokens of a micro-batch by kind; None if not all is there."""
    tensors = {key: Rows(batch[key]) for key in TENSORS if key in batch}
    if not tensors.keys() >= {"input_ids", "responses", "loss_mask"} or tensors["input_ids"].offsets is None:
        return None
    rows = [Row(tokens, response_of(tensors, row), is_pad) for row, (tokens, is_pad) in enumerate(_rows(batch))]
    return count_rows(rows, int(tensors["loss_mask"].flat.sum()), is_packed=is_packed)


def _lengths(batch: dict[str, Any]) -> list[int]:
    return [length for length, is_padding in _rows(batch) if not is_padding]


def _rows(batch: dict[str, Any]) -> list[tuple[int, bool]]:
    """Return the tokens of each sequence, and whether it only fills up the batch."""
    ids = batch.get("input_ids")
    if ids is None or not ids.is_nested:
        return []
    lengths = [end - begin for begin, end in pairwise(ids.offsets().tolist())]
    uids = listed(batch["uid"]) if "uid" in batch else [""] * len(lengths)
    return [(length, str(uid).startswith(PADDING)) for length, uid in zip(lengths, uids, strict=True)]
