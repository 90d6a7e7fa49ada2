"""What ``observe()`` shows to MFU and to the correctness ledger, without a framework. This is a hot path.

What is shown is copied, since its owner may go on to change it: on the host at once, on a device by its stream, which
nothing waits for. Everything else is done by the flusher.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from otel_rl import vocabulary
from otel_rl.guard import guard
from otel_rl.metrics.naming import refuse
from otel_rl.observing import network
from otel_rl.observing.batch import KEYS
from otel_rl.observing.book import Book, ShownBatch, book
from otel_rl.probes import deferred
from otel_rl.probes.deferred import deferral
from otel_rl.probes.host_arrays import of_own
from otel_rl.process.hooked import hooking
from otel_rl.process.state import state
from otel_rl.records import Deferred
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage, current_stage

LIMIT_BYTES: Final = 256 << 20
"""Copies that may wait for the flusher; a batch beyond that is ignored."""
LIMIT_CONFIGURATIONS: Final = 32
HOST: Final = ("cpu", "meta")
NOTHING: Final[frozenset[str]] = frozenset()
"""What the ledger notes of a batch that shows only its masks."""


def observe(*, model: Any = None, batch: Mapping[str, Any] | None = None) -> None:
    """Show a model, and the batch that the current stage handles: ``otel_rl.observe(model=m, batch=b)``.

    Call it inside of a step, in the stage that handles the batch: ``sample``, ``logprob``, ``value``, ``reward``,
    ``train.forward`` (or ``train``), or in a stage of your own inside of it, with whatever of the batch that stage has.
    FLOPs are counted of the batches of ``logprob``, ``value`` and ``train``; the ledger compares the batches of all
    stages of a step. Never raises for what it cannot use: that is counted (docs/failures.md). Without ``instrument()``
    it does nothing.

    Args:
        model: a module of torch (of transformers, also under PEFT, DDP, FSDP, DeepSpeed) or its configuration as a
            mapping; equal ones are one model. It is read when it is first shown, and not kept alive. Batches without a
            model belong to the one that was shown last.
        batch: tensors of the host or a device, numpy arrays or lists, by these keys, of which each may be absent:

            - ``input_ids`` (B, T), ``attention_mask`` (B, T): whole sequences and their real tokens;
            - or ``prompt_ids``, ``prompt_mask`` (B, P) and ``completion_ids``, ``completion_mask`` (B, C);
            - ``completion_mask`` (B, C) beside ``input_ids``: the last C columns are the responses;
            - ``lengths`` (B,): real tokens of each sequence, where masks do not say them;
            - ``sample_ids`` (B,): numbers of the samples; with them a loop may shuffle;
            - ``rollout_logprobs``, ``logprobs``, ``old_logprobs``, ``ref_logprobs``, ``values``, ``returns``,
              ``advantages``, ``rewards`` (B,), (B, C) or (B, T), ``loss``: what must be finite.

    Emits: ``rl.flops.*``, ``rl.ledger.*``. Cost: docs/model.md; no synchronisation, no random number.
    """
    if not state.on or hooking.is_compiling():
        return
    with guard("observe"):
        seen = None if model is None else show(model)
        if model is not None and seen is None:
            refuse(
                "no_model", "otel_rl.observe: model= takes a module or a configuration, not %s", type(model).__name__
            )
        if batch is not None:
            stages = _stages()
            if not any(map(_is_evaluation, stages)):
                names = _names(stages)
                observe_batch(batch, stage=_stage_of_ours(names), seen=seen, boundary=names[0])


def show(model: Any) -> network.Network | None:
    known, book.is_open = book, True
    seen: network.Network | None
    if isinstance(model, Mapping):
        seen = _of_configuration(known, dict(model))
    elif not hasattr(model, "named_parameters"):
        return None
    else:
        seen = known.models.get(model)
        if seen is None:
            seen = known.models[model] = network.read(model)
    known.last = seen
    return seen


def _of_configuration(known: Book, config: dict[str, Any]) -> network.Network:
    """Find the model of a configuration: many programs make a mapping for each call, so what is in it decides."""
    for seen in known.configurations:
        try:
            if seen.config == config:
                return seen
        except (TypeError, ValueError, RuntimeError):  # of two arrays nothing says that they are equal
            continue
    seen = network.read(config)
    known.configurations = [seen, *known.configurations[: LIMIT_CONFIGURATIONS - 1]]
    return seen


def observe_batch(batch: Any, *, stage: str, seen: network.Network | None = None, **how: Any) -> None:
    """Observe a batch that is not one of an evaluation."""
    shown = _shown(stage, seen, how)
    if shown is None:
        return
    if not isinstance(batch, Mapping):
        refuse("no_batch", "otel_rl.observe: batch= takes a mapping, not %s", type(batch).__name__)
        return
    known = book
    given = {key: value for key, value in batch.items() if key in KEYS and value is not None and _is_here(key, value)}
    if not _fits(known, sum(map(_size, given.values()))):
        return
    remote = {key: value for key, value in given.items() if _device_of(value)}
    values = {
        key: copied
        for key, value in given.items()
        if key not in remote and (copied := _capture(key, value)) is not None
    }
    size = sum(map(_size, (*values.values(), *remote.values())))
    if not _fits(known, size):  # lists have become arrays
        return
    known.copied_bytes += size
    is_sent = False
    try:
        send = _from_device if remote else _from_host
        is_sent = send(known, shown, values, remote, size)
    finally:
        if not is_sent:
            known.copied_bytes -= size


def observe_masks(
    masks: Mapping[str, Any], *, stage: str, seen: network.Network | None, kept: int | None = None, **how: Any
) -> None:
    """Observe masks alone, which FLOPs are counted from; on the host they are not copied."""
    for mask in masks.values():
        if mask.device.type not in HOST or hasattr(mask, "placements"):
            if kept is not None:
                whole = masks["attention_mask"]
                masks = {**masks, "completion_mask": whole[:, whole.shape[1] - kept :]}
            observe_batch(masks, stage=stage, seen=seen, parts=NOTHING, **how)
            return
    shown = _shown(stage, seen, {"parts": NOTHING, **how})
    if shown is not None:
        state.add(Deferred(book.add_masks, (shown, masks, kept)))


def observe_lengths(read: Callable[[], list[int]], *, stage: str, seen: network.Network, **how: Any) -> None:
    """Observe the lengths of sequences alone, which FLOPs are counted from; the flusher reads them."""
    shown = _shown(stage, seen, {"parts": NOTHING, **how})
    if shown is not None:
        state.add(Deferred(book.add_lengths, (shown, read)))


def _shown(stage: str, seen: network.Network | None, how: Mapping[str, Any]) -> ShownBatch | None:
    container = tracing.container
    attributes = container.attributes if container is not None else None
    if container is None or not attributes or vocabulary.ITERATION not in attributes or container.trace is None:
        refuse("outside_step", "otel_rl.observe: a batch outside of a step is ignored; call it inside otel_rl.step")
        return None
    book.is_open = True
    loop, _, number = container.trace.step.rpartition(" ")
    return ShownBatch(
        stage=stage,
        trace=container.trace,
        step=int(number),
        loop=loop,
        seen=seen or book.last,
        **how,
    )


def _fits(known: Book, size: int) -> bool:
    if known.copied_bytes - known.done_bytes + size <= LIMIT_BYTES:
        return True
    refuse("too_many_bytes", "otel_rl.observe: a batch is left out: more than %d bytes would be pending", LIMIT_BYTES)
    return False


def _stages() -> list[Stage]:
    opened = {one.span_id: one for one in tracing.open.copy() if one.__class__ is Stage}
    stage, found = current_stage(), []
    while stage is not None:
        found.append(stage)
        stage = opened.pop(stage.parent_id, None)
    return found


def _is_evaluation(stage: Stage) -> bool:
    return stage.name == vocabulary.EVALUATE or (stage.attributes or {}).get(vocabulary.MODE) == "eval"


def _names(stages: list[Stage]) -> list[str]:
    """Name them, the step last; not the stage of an optimizer, which contains what a closure calls."""
    within = [stage.name for stage in stages if stage is not tracing.container]
    return [*(name for name in within if name != vocabulary.OPTIMIZER), vocabulary.LOOP]


def _stage_of_ours(names: list[str]) -> str:
    """Return the nearest stage of the vocabulary, of which the user's own are parts; directly in a step, the step."""
    return next(name for name in (name.partition(" ")[0] for name in names) if name in vocabulary.STAGES)


def _is_here(key: str, value: Any) -> bool:
    """Return whether an entry can be read without another rank or another device."""
    if hasattr(value, "placements"):
        refuse(
            "distributed_tensor",
            "otel_rl.observe: %s is ignored: a DTensor is read by a collective; pass a tensor",
            key,
        )
        return False
    kind = _device_of(value)
    if kind == "mps":  # its events know no streams
        refuse(
            "unreadable_batch",
            "otel_rl.observe: %s is ignored: tensors on %s are not read; pass it on the CPU",
            key,
            kind,
        )
        return False
    if kind and value.device.index not in (None, getattr(sys.modules["torch"], kind).current_device()):
        refuse("other_device", "otel_rl.observe: %s is ignored: it is not on the current device", key)
        return False
    return True


def _device_of(value: Any) -> str:
    kind = getattr(getattr(value, "device", None), "type", "cpu")
    return kind if kind not in HOST and hasattr(value, "element_size") else ""


def _capture(key: str, value: Any) -> Any:
    try:
        return _copy(value)
    except (TypeError, ValueError, RuntimeError) as error:
        refuse("unreadable_batch", "otel_rl.observe: %s is ignored: it cannot be read (%s)", key, type(error).__name__)
        return None


def _copy(value: Any, depth: int = 1) -> Any:
    import numpy as np

    if hasattr(value, "detach"):
        if _device_of(value):
            raise TypeError  # a row of a list: nothing is launched for it
        return of_own(value.detach().clone())
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, (list, tuple)):
        if not value or not hasattr(value[0], "__len__"):
            return np.array(value)
        if not depth:
            raise ValueError
        return tuple(_copy(one, depth - 1) for one in value)
    if isinstance(value, (int, float, np.generic)):
        return np.array(value)
    raise TypeError


def _size(value: Any) -> int:
    if isinstance(value, (list, tuple)):
        return sum(map(_size, value)) if value and hasattr(value[0], "dtype") else 0
    if hasattr(value, "element_size"):
        return int(value.numel() * value.element_size())
    return int(getattr(value, "nbytes", 0))


def _from_host(known: Book, shown: ShownBatch, values: dict[str, Any], _: object, size: int) -> bool:
    """Hand over copies of the host's, after what is on its way from a device: the ledger compares in that order."""
    if deferral.pending:
        deferred.resolve()
    if not deferral.pending:
        return state.add(Deferred(known.add_batch, (shown, values, size)))
    if len(deferral.pending) >= deferred.LIMIT:
        refuse("device_too_late", "otel_rl.observe: a batch is left out: too many copies from the device are pending")
        return False
    if not state.add(Deferred(known.expect, (shown, 1))):
        return False
    deferred.follow(lambda _: known.arrived(shown, values, {}, size))
    return True


def _from_device(known: Book, shown: ShownBatch, values: dict[str, Any], remote: dict[str, Any], size: int) -> bool:
    names, tensors = tuple(remote), [one.detach() for one in remote.values()]
    if not known.device:
        known.device = network.device_name(tensors[0])

    def use(hosts: list[Any]) -> Any:
        return known.arrived(shown, values, dict(zip(names, hosts, strict=True)), size)

    if not state.add(Deferred(known.expect, (shown, 1))):
        return False
    is_coming = False
    try:
        is_coming = deferred.copy(tensors[0].device.type, tensors, use)
    finally:
        if not is_coming:
            state.add(Deferred(known.expect, (shown, -1)))
    if not is_coming:
        refuse("device_too_late", "otel_rl.observe: a batch is left out: it could not be copied from its device")
    return is_coming
