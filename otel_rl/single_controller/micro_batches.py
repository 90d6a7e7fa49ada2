"""Micro-batches on a rank: their tokens by kind, and the operations of their forwards.

An integration says which function is a forward, of which network, and what it handles. Tensors of the host are read by
the flusher, so they must not change meanwhile; the sums of those on a device follow once they have arrived. Logits are
taken to be computed of all tokens. Ranks that compute one micro-batch together each count their share of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Final, NamedTuple

from otel_rl import vocabulary
from otel_rl.hooks import Args, Kwargs, Memory, PendingAttributes, deferred
from otel_rl.observing.api import observe_lengths, observe_masks
from otel_rl.observing.book import book
from otel_rl.observing.network import Network, device_name, read
from otel_rl.observing.samples import Rows, is_readable, later
from otel_rl.records import Count
from otel_rl.single_controller.ledger import response_of
from otel_rl.trace.guest import guest
from otel_rl.trace.stage import innermost

FORWARD_ONLY: Final = vocabulary.LOGPROB, vocabulary.VALUE
"""Stages whose forwards train nothing, and count."""
UPDATES: Final = vocabulary.TRAIN, vocabulary.MINI_BATCH
KINDS: Final = (
    vocabulary.TOKENS_PROMPT, vocabulary.TOKENS_RESPONSE, vocabulary.TOKENS_PADDING, vocabulary.TOKENS_ENVIRONMENT,
)  # fmt: skip


FIELDS: Final = frozenset(("input_ids", "responses", "loss_mask", "attention_mask"))
"""``loss_mask`` is true for each token of a response that the policy generated."""


class TokenCounts(NamedTuple):
    """The tokens of a micro-batch, in the order of ``KINDS`` and of ``Throughput.count_forward``."""

    prompt: int
    response: int
    """Tokens that the policy generated."""
    padding: int
    """Samples that fill up a batch, and what makes rows equally long."""
    environment: int


class Fields(NamedTuple):
    """The fields of a batch whose sequences are nested tensors."""

    tensors: Mapping[str, Any]
    """By the names of ``FIELDS``; responses and their mask may be padded. Those on a device are not read."""
    is_padding: Callable[[], Sequence[bool]] | None = None
    """Returns for each sequence whether it only fills up the batch; None: none does."""


class Masks(NamedTuple):
    """The masks of a padded batch, equally wide."""

    whole: Any
    """True for each token that is no padding."""
    response: Any = None
    """True for each token that the policy generated; None: not known."""
    prompt: Any = None
    """None: what the policy did not generate is the prompt."""


@dataclass(eq=False)
class Update(Memory):
    """The batch that is trained now, if its masks are known."""

    masks: Masks | None = None
    row: int = 0
    """The first row that no micro-batch has had."""


update = Update.keep("update")


# --- networks ---------------------------------------------------------------------------------------------------------


def keep_network(owner: Any, module: Any, ranks: int = 1) -> Network:
    """Read a network, at best before it is sharded, and keep what was read.

    Args:
        owner: the object that computes its forwards; it has one network.
        module: the network itself.
        ranks: so many compute one micro-batch together.
    """
    seen = book.models[owner] = replace(read(module), shared_by=ranks)
    return seen


def network_of(owner: Any, module: Any, ranks: int = 1) -> Network:
    """Return the network of an owner; it is read now if it was not kept before."""
    return book.models.get(owner) or keep_network(owner, module, ranks)


def has_adapters(module: Any, seen: Network) -> bool:
    """Return whether the adapters of a network are on: the reference may be the actor without them."""
    modules = module.modules() if seen.adapters else ()
    are_off = (getattr(one, "disable_adapters", None) for one in modules)
    return not next((is_off for is_off in are_off if isinstance(is_off, bool)), False)


# --- tokens -----------------------------------------------------------------------------------------------------------


def begin_update(masks: Masks | None) -> None:
    """Begin a batch whose micro-batches are its rows one after the other."""
    update.masks, update.row = masks, 0


def next_masks(rows: int) -> Masks | None:
    """Return the masks of the micro-batch that has the next rows; None if they are not known."""
    masks, begin, update.row = update.masks, update.row, update.row + rows
    if masks is None or update.row > len(masks.whole):
        return None
    return Masks(*(None if mask is None else mask[begin : update.row] for mask in masks))


def describe_fields(samples: int, fields: Fields, *, is_packed: bool) -> PendingAttributes:
    """Return the attributes of a forward, of which the tokens follow.

    Args:
        samples: so many the micro-batch has.
        fields: its own.
        is_packed: no positions make rows equally long.
    """
    said = PendingAttributes({vocabulary.BATCH_SIZE: samples})
    later(_complete_fields, said, _readable(fields), is_packed)
    return said


def describe_masks(masks: Masks, *, is_packed: bool = False) -> PendingAttributes:
    """Return the attributes of a forward, of which the tokens follow, also from a device.

    Args:
        masks: of its samples.
        is_packed: the forward leaves out what makes rows equally long.
    """
    said = PendingAttributes({vocabulary.BATCH_SIZE: len(masks.whole)})
    known = [mask for mask in masks if mask is not None]
    positions = None if is_packed else masks.whole.numel()
    said.is_complete = not deferred.read(known, partial(_complete_sums, said, positions))
    return said


def is_updating() -> bool:
    """Return whether the innermost stage is an update, or a mini-batch of it."""
    stage = innermost()
    return stage is not None and stage.name in UPDATES


def stage_of_forward(args: Args, kwargs: Kwargs) -> str | None:
    """Return the stage of a forward: the open stage says whether it is trained."""
    return forward_stage(is_trained=is_updating())


def forward_stage(*, is_trained: bool) -> str | None:
    """Name the forward of a micro-batch that is trained, or of log-probabilities; others are part of their stage."""
    around = innermost()
    if is_trained:
        return vocabulary.FORWARD
    return vocabulary.LOGPROB_FORWARD if around is not None and around.name == vocabulary.LOGPROB else None


def count_forward(ranks: int = 1) -> None:
    """Count the tokens of a training forward that has returned, once the open stage knows them."""
    stage = innermost()
    if stage is None or stage.name != vocabulary.FORWARD:
        return
    if isinstance(stage.attributes, PendingAttributes):
        deferred.follow(partial(_count, stage.attributes, max(1, ranks)))


# --- operations -------------------------------------------------------------------------------------------------------


def show_fields(fields: Fields, seen: Network, output: Any, **how: bool) -> None:
    """Show a forward of such a batch for its FLOPs; the rest is as of ``show_mask``."""
    shown = _shown(seen, output, **how)
    if shown is not None:
        observe_lengths(partial(_lengths, _readable(fields)), **shown)


def show_mask(mask: Any, seen: Network, output: Any, **how: bool) -> None:
    """Show a forward for its FLOPs, after its stage: one of training, of log-probabilities or of values.

    Args:
        mask: of the tokens that are no padding, on the host or on a device.
        seen: its network.
        output: a tensor on the device that computes: parameters may be kept on the host.
        how: ``is_trained``, and ``has_adapters`` if they may be off.
    """
    shown = _shown(seen, output, **how)
    if shown is not None:
        observe_masks({"attention_mask": mask}, **shown)


def _readable(fields: Fields) -> Fields:
    return fields._replace(tensors={key: one for key, one in fields.tensors.items() if is_readable(one)})


def _shown(seen: Network, output: Any, *, is_trained: bool, has_adapters: bool = True) -> dict[str, Any] | None:
    stage = innermost()
    if not guest.began or stage is None or not (is_trained or stage.name in FORWARD_ONLY):
        return None
    book.device = book.device or device_name(output)
    return {
        "stage": vocabulary.FORWARD if is_trained else stage.name,
        "seen": seen,
        "kind": "" if is_trained else str((stage.attributes or {}).get(vocabulary.LOGPROB_KIND, "")),
        "has_adapters": has_adapters,
    }


# --- in the flusher ---------------------------------------------------------------------------------------------------


def count_tokens(fields: Fields, *, is_packed: bool) -> TokenCounts | None:
    """Count the tokens of a micro-batch by kind; None if not all is there."""
    tensors = {key: Rows(one) for key, one in fields.tensors.items()}
    if not tensors.keys() >= {"input_ids", "responses", "loss_mask"} or tensors["input_ids"].offsets is None:
        return None
    rows = _rows(fields)
    real = sum(length for length, is_padding in rows if not is_padding)
    written = sum(response_of(tensors, row) for row, (_, is_padding) in enumerate(rows) if not is_padding)
    response = int(tensors["loss_mask"].flat.sum())
    lengths = [length for length, _ in rows]
    positions = sum(lengths) if is_packed else len(rows) * max(lengths, default=0)
    return TokenCounts(real - written, response, positions - real, written - response)


def _lengths(fields: Fields) -> list[int]:
    return [length for length, is_padding in _rows(fields) if not is_padding]


def _rows(fields: Fields) -> list[tuple[int, bool]]:
    """Return the tokens of each sequence, and whether it only fills up the batch."""
    ids = fields.tensors.get("input_ids")
    if ids is None or not ids.is_nested:
        return []
    lengths = [end - begin for begin, end in pairwise(ids.offsets().tolist())]
    is_padding = [False] * len(lengths) if fields.is_padding is None else fields.is_padding()
    return list(zip(lengths, is_padding, strict=True))


def _complete_fields(said: PendingAttributes, fields: Fields, is_packed: bool) -> tuple[()]:
    found = count_tokens(fields, is_packed=is_packed)
    if found is not None:
        _set(said, found)
    said.is_complete = True
    return ()


def _complete_sums(said: PendingAttributes, positions: int | None, sums: list[float]) -> tuple[()]:
    tokens, *kinds = map(int, sums)
    padding = 0 if positions is None else positions - tokens
    if kinds:
        response, prompt = kinds[0], kinds[1] if len(kinds) > 1 else tokens - kinds[0]
        _set(said, TokenCounts(prompt, response, padding, max(0, tokens - prompt - response)))
    else:
        said |= {vocabulary.TOKENS: tokens, vocabulary.TOKENS_PADDING: padding}
    said.is_complete = True
    return ()


def _set(said: PendingAttributes, found: TokenCounts) -> None:
    said[vocabulary.TOKENS] = found.prompt + found.response + found.environment
    said.update(zip(KINDS, found, strict=True))


def _count(said: PendingAttributes, ranks: int, _: object) -> Iterable[Count]:
    if not said.keys() >= set(KINDS):
        return ()
    found: Any = said
    return guest.throughput.count_forward(*(found[kind] // ranks for kind in KINDS))
