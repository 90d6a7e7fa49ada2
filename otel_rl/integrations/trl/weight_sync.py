"""TRL's weight sync to vLLM: the bytes of the weights that this rank hands on.

Source: trl 1.16, ``generation/vllm_client.py`` (``update_named_params``, 821), ``generation/vllm_generation.py``
(``_iter_named_params``, 435; ``sync_weights``, 481), ``experimental/async_grpo/weight_transfer.py`` (``send_weights``,
130). A server is told the types and shapes of all tensors before it gets the first; rank 0 alone sends them. An engine
in the process of a rank gets the tensors from that rank, one by one. Adapters that are read from a disk have no size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from otel_rl import vocabulary
from otel_rl.hooks import Args, CallbackHook, Hook, Kwargs, RequestHook
from otel_rl.trace.stage import innermost


class Loading:
    """Adds up the tensors that an engine in this process loads: pairs of a name and a tensor."""

    def __init__(self) -> None:
        self.size = 0

    def item(self, value: Any) -> None:
        """Add a tensor."""
        self.size += int(value[1].numel()) * int(value[1].element_size())

    def end(self, result: Any, error: BaseException | None) -> None:
        """Tell the sum if all were loaded."""
        if error is None:
            _add(self.size)


def _loading(args: Args, kwargs: Kwargs) -> Loading | None:
    """Return what watches ``_iter_named_params(self)``; for a server it is called to read the shapes, too."""
    return Loading() if args[0].mode == "colocate" else None


def _announced(args: Args, kwargs: Kwargs) -> None:
    """Add what is sent to a server: ``update_named_params(self, metadata, named_params)``."""
    _add(_size((kind, shape) for _, kind, shape in args[1]))


def _sending(args: Args, kwargs: Kwargs) -> None:
    """Add what AsyncGRPO sends: ``send_weights(self, iterator)``; without a group it sends nothing."""
    if args[0].model_update_group is not None:
        known = args[0]._weight_update_info
        _add(_size(zip(known["dtype_names"], known["shapes"], strict=True)))


def _size(tensors: Iterable[tuple[str, Sequence[int]]]) -> int:
    """Return the bytes of tensors by type, as in ``bfloat16``, and shape."""
    import torch

    return sum(int(getattr(torch, kind).itemsize) * prod(shape) for kind, shape in tensors)


def _add(size: int) -> None:
    """Add bytes to the sync that is open."""
    stage = innermost()
    if stage is not None and stage.name == vocabulary.SYNC:
        known = (stage.attributes or {}).get(vocabulary.SYNC_BYTES)
        stage.set_attribute(vocabulary.SYNC_BYTES, size + (known if isinstance(known, int) else 0))


HOOKS: tuple[Hook, ...] = (
    CallbackHook(target="trl.generation.vllm_client:VLLMClient.update_named_params", before=_announced),
    RequestHook(target="trl.generation.vllm_generation:VLLMGeneration._iter_named_params", watch=_loading),
    CallbackHook(
        target="trl.experimental.async_grpo.weight_transfer:WeightTransferClient.send_weights", before=_sending
    ),
)
