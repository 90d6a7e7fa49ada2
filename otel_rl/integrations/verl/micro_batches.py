"""Micro-batches of verl on a rank: their tokens, and the operations of their forwards.

Source: verl 0.9.1, ``workers/engine/fsdp/transformer_impl.py`` (``_build_fsdp_module``, 385; ``forward_step``, 1549).
Until its forward a micro-batch is on the host: the flusher reads its tensors. Logits are computed of all tokens. Actor,
reference and critic have an engine each, whose network is read before it is sharded. Ranks that split sequences
(Ulysses) get the same micro-batch, and each counts its share.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, Final, NamedTuple

from otel_rl import vocabulary
from otel_rl.hooks import Args, Kwargs, PendingAttributes
from otel_rl.integrations.verl.ledger import PADDING, listed
from otel_rl.observing.api import observe_lengths
from otel_rl.observing.book import book
from otel_rl.observing.network import Network, device_name, read
from otel_rl.observing.samples import Rows, is_readable, later
from otel_rl.records import Count
from otel_rl.single_controller.ledger import response_of
from otel_rl.trace.guest import guest
from otel_rl.trace.stage import innermost

TENSORS: Final = frozenset(("input_ids", "responses", "loss_mask", "attention_mask"))
IS_PACKED: Final = "use_remove_padding"
TAKEN: Final = frozenset((*TENSORS, "uid"))
FORWARD_ONLY: Final = vocabulary.LOGPROB, vocabulary.VALUE


class TokenCounts(NamedTuple):
    """The tokens of a micro-batch, in the order of ``Throughput.count_forward``."""

    prompt: int
    response: int
    """Tokens that the policy generated; the loss uses them."""
    padding: int
    """Samples that fill up a batch, and what makes rows equally long."""
    environment: int


# --- networks ---------------------------------------------------------------------------------------------------------


def read_network(args: Args, kwargs: Kwargs) -> None:
    """Read a network before it is sharded: ``FSDPEngine._build_fsdp_module(self, module)``."""
    book.models[args[0]] = _read(args[0], args[1])


def _network_of(engine: Any) -> Network:
    seen = book.models.get(engine)
    if seen is None:  # an engine that builds its module in another way
        seen = book.models[engine] = _read(engine, engine.module)
    return seen


def _read(engine: Any, module: Any) -> Network:
    return replace(read(module), shared_by=getattr(engine, "ulysses_sequence_parallel_size", 1))


def _has_adapters(engine: Any, seen: Network) -> bool:
    """Return whether adapters are on: the reference may be the actor without them."""
    modules = engine.module.modules() if seen.adapters else ()
    are_off = (getattr(one, "disable_adapters", None) for one in modules)
    return not next((is_off for is_off in are_off if isinstance(is_off, bool)), False)


# --- forwards: forward_step(self, micro_batch, loss_function, forward_only) -------------------------------------------


def say_forward(args: Args, kwargs: Kwargs) -> PendingAttributes:
    """Describe a micro-batch that is trained; its tokens follow."""
    said = PendingAttributes({vocabulary.BATCH_SIZE: len(args[1])})
    later(_describe, said, _taken(args[1]), _is_packed(args[1]))
    return said


def forward_made(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Count the tokens of a training forward that has returned."""
    stage = innermost()
    if stage is not None and isinstance(stage.attributes, PendingAttributes):
        later(_count, stage.attributes, _network_of(args[0]).shared_by)


def show_forward(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Show any forward of a step for its FLOPs: one of training, of log-probabilities or of values."""
    engine, stage = args[0], innermost()
    if not guest.began or stage is None or (args[3] and stage.name not in FORWARD_ONLY):
        return
    seen = _network_of(engine)
    book.device = book.device or device_name(result[0])  # parameters may be kept on the host
    observe_lengths(
        partial(_lengths, _taken(args[1])),
        stage=stage.name if args[3] else vocabulary.FORWARD,
        seen=seen,
        kind=str((stage.attributes or {}).get(vocabulary.LOGPROB_KIND, "")) if args[3] else "",
        has_adapters=_has_adapters(engine, seen),
    )


def _taken(data: Any) -> dict[str, Any]:
    found = {key: data.get(key) for key in TAKEN.intersection(data.keys())}
    return {key: one for key, one in found.items() if key not in TENSORS or is_readable(one)}


def _is_packed(data: Any) -> bool:
    return IS_PACKED not in set(data.keys()) or bool(data[IS_PACKED])


# --- in the flusher ---------------------------------------------------------------------------------------------------


def _describe(said: PendingAttributes, batch: dict[str, Any], is_packed: bool) -> tuple[()]:
    found = count_tokens(batch, is_packed=is_packed)
    if found is not None:
        said[vocabulary.TOKENS] = found.prompt + found.response + found.environment
        said[vocabulary.TOKENS_PROMPT] = found.prompt
        said[vocabulary.TOKENS_RESPONSE] = found.response
        said[vocabulary.TOKENS_ENVIRONMENT] = found.environment
        said[vocabulary.TOKENS_PADDING] = found.padding
    said.is_complete = True
    return ()


def _count(said: PendingAttributes, ranks: int) -> Iterable[Count]:
    if vocabulary.TOKENS not in said:
        return ()
    found: Any = said
    kinds = (
        vocabulary.TOKENS_PROMPT, vocabulary.TOKENS_RESPONSE, vocabulary.TOKENS_PADDING, vocabulary.TOKENS_ENVIRONMENT,
    )  # fmt: skip
    return guest.throughput.count_forward(*(found[kind] // max(1, ranks) for kind in kinds))


def count_tokens(batch: dict[str, Any], *, is_packed: bool) -> TokenCounts | None:
    """Count the tokens of a micro-batch by kind; None if not all is there."""
    tensors = {key: Rows(batch[key]) for key in TENSORS if key in batch}
    if not tensors.keys() >= {"input_ids", "responses", "loss_mask"} or tensors["input_ids"].offsets is None:
        return None
    rows = _rows(batch)
    real = sum(length for length, is_padding in rows if not is_padding)
    written = sum(response_of(tensors, row) for row, (_, is_padding) in enumerate(rows) if not is_padding)
    response = int(tensors["loss_mask"].flat.sum())
    lengths = [length for length, _ in rows]
    positions = sum(lengths) if is_packed else len(rows) * max(lengths, default=0)
    return TokenCounts(real - written, response, positions - real, written - response)


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
