"""Micro-batches of verl on a rank.

Source: verl 0.9.1, ``workers/engine/fsdp/transformer_impl.py`` (``_build_fsdp_module``, 385; ``forward_step``, 1549).
Until its forward a micro-batch is on the host. Actor, reference and critic have an engine each. Ranks that split
sequences (Ulysses) get the same micro-batch.
"""

from __future__ import annotations

from typing import Any, Final

from otel_rl.hooks import Args, Kwargs, PendingAttributes
from otel_rl.integrations.verl.ledger import is_padding, listed
from otel_rl.observing.network import Network
from otel_rl.single_controller import micro_batches as kit

IS_PACKED: Final = "use_remove_padding"


def read_network(args: Args, kwargs: Kwargs) -> None:
    """Read a network before it is sharded: ``FSDPEngine._build_fsdp_module(self, module)``."""
    kit.keep_network(args[0], args[1], _ranks(args[0]))


def _network(engine: Any) -> Network:
    return kit.network_of(engine, engine.module, _ranks(engine))


def _ranks(engine: Any) -> int:
    return int(getattr(engine, "ulysses_sequence_parallel_size", 1))


def say_forward(args: Args, kwargs: Kwargs) -> PendingAttributes:
    """Describe a micro-batch: ``forward_step(self, micro_batch, loss_function, forward_only)``."""
    return kit.describe_fields(len(args[1]), fields_of(args[1]), is_packed=is_packed(args[1]))


def forward_made(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Count the tokens of a training forward that has returned."""
    kit.count_forward(_network(args[0]).shared_by)


def show_forward(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Show any forward of a step for its FLOPs."""
    engine, seen = args[0], _network(args[0])
    is_on = kit.has_adapters(engine.module, seen)
    kit.show_fields(fields_of(args[1]), seen, result[0], is_trained=not args[3], has_adapters=is_on)


def fields_of(data: Any) -> kit.Fields:
    """Return the fields that count."""
    keys = set(data.keys())
    tensors, uids = {key: data.get(key) for key in kit.FIELDS & keys}, data.get("uid") if "uid" in keys else None
    return kit.Fields(tensors, None if uids is None else lambda: [is_padding(str(uid)) for uid in listed(uids)])


def is_packed(data: Any) -> bool:
    """Return whether rows are as long as their sequences."""
    return IS_PACKED not in set(data.keys()) or bool(data[IS_PACKED])
