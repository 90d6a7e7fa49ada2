"""What is read of a model, once: its configuration, its parameters, its device. Nothing of it is kept alive."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, Final

from otel_rl.analysis.architecture import Architecture, Unknown, architecture
from otel_rl.analysis.flops import passes
from otel_rl.analysis.trained import ADAPTERS, FULL, Parameter, Trained, trained

SHARING: Final = ("tp", "pp", "cp")
"""Dimensions of a mesh whose ranks compute one model together; each rank of the others has tokens of its own."""
WRAPPED: Final = ("_orig_mod", "module")
"""Where torch.compile, DDP and DeepSpeed keep the model."""


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """A model as the flusher needs it."""

    config: Mapping[str, Any]
    parameters: tuple[Parameter, ...] = ()
    """None of them: all weights are trained."""
    device: str = ""
    """Name of its device; empty for a CPU and where it is not known."""
    shared_by: int = 0
    """Ranks that compute one model together; 0: not known, each is assumed to work for itself."""
    adapters: tuple[str, ...] = ()
    """Kinds of its adapters, as PEFT calls them."""


@dataclass(frozen=True, slots=True)
class Formula:
    """What FLOPs are computed from; or why they cannot be."""

    architecture: Architecture | None
    trained: Trained = FULL
    outputs: int | None = None
    """Width of the head; None: the vocabulary."""
    reason: str = ""
    costs: tuple[Costs, Costs] | None = None
    """Costs of a forward, and of forward and backward; None where layers see windows of different widths."""

    def count(self, lengths: list[int], logits: int | None, *, is_training: bool, has_adapters: bool = True) -> int:
        if self.costs is not None and has_adapters:
            return self.costs[is_training].of(lengths, logits)
        which = self.trained if has_adapters else FULL
        return _total(self.architecture, lengths, which, logits, self.outputs)[is_training]


@dataclass(frozen=True, slots=True)
class Costs:
    """Operations of a model whose layers see all that is before: of a token, of a pair of tokens, of logits."""

    token: int
    pair: int
    logit: int

    def of(self, lengths: list[int], logits: int | None) -> int:
        """Count a batch. Cost: 1 us, where a model of 24 layers takes 40 layer by layer."""
        tokens = sum(lengths)
        pairs = sum(length * length for length in lengths)
        return tokens * self.token + pairs * self.pair + (tokens if logits is None else logits) * self.logit


def _total(
    architecture: Any, lengths: list[int], which: Trained, logits: int | None, outputs: int | None
) -> tuple[int, int]:
    found = passes(architecture, lengths, which, logits=logits, outputs=outputs)
    return found.forward, found.forward + found.input_gradient + found.weight_gradient


def _costs(found: Architecture, which: Trained, outputs: int | None) -> tuple[Costs, Costs] | None:
    """Measure the formula at three small batches, which say everything of it: it is a polynomial."""
    if any(layer.window is not None for layer in found.layers):
        return None
    logit, one, two = (
        _total(found, lengths, which, logits, outputs) for lengths, logits in (([], 1), ([1], 0), ([2], 0))
    )
    pair = [(two[at] - 2 * one[at]) // 2 for at in (0, 1)]
    forward, training = (Costs(one[at] - pair[at], pair[at], logit[at]) for at in (0, 1))
    return forward, training


def read(model: Any) -> Network:
    """Read a torch module, or take a configuration as it is.

    Cost: 1.5 us for each parameter; waits for no device and gathers no shard.
    """
    if isinstance(model, Mapping):
        return Network(dict(model))
    named = list(model.named_parameters())
    inner = _unwrapped(model)
    return Network(
        config=_config(inner),
        parameters=tuple(_parameters(model, named)),
        device=next((name for _, one in named if (name := device_name(one))), ""),
        shared_by=_shared_by(one for _, one in named),
        adapters=_adapters(inner),
    )


def device_name(tensor: Any) -> str:
    """Name the device that holds a tensor; empty for the host's. It was initialised to hold it."""
    device = getattr(tensor, "device", None)
    module = (
        None if device is None or device.type in ("cpu", "meta") else getattr(sys.modules["torch"], device.type, None)
    )
    read_name = getattr(module, "get_device_name", None)
    return "" if read_name is None else str(read_name(device))


@lru_cache(32)
def formula_of(seen: Network) -> Formula:
    """Work out what FLOPs are computed from; runs in the flusher."""
    try:
        found = architecture(seen.config)
        if not seen.parameters:
            outputs = _outputs_by_name(seen.config)
            return Formula(found, outputs=outputs, costs=_costs(found, FULL, outputs))
        if strange := set(seen.adapters) - ADAPTERS:
            raise Unknown(f"adapter type {min(strange)!r}")
        flat = [one for one in seen.parameters if one.name.rpartition(".")[2].startswith("_flat_param")]
        if flat and any(one.is_trained != flat[0].is_trained for one in flat):
            raise Unknown("FSDP has flattened frozen and trained parameters: show the model before it is wrapped")
        kinds = FULL if flat and flat[0].is_trained else trained(seen.parameters, seen.config)
        outputs = _outputs(seen.parameters)
        return Formula(found, kinds, outputs, costs=_costs(found, kinds, outputs))
    except Unknown as error:
        return Formula(None, reason=str(error))


def _unwrapped(model: Any) -> Any:
    while inner := next((one for name in WRAPPED if hasattr(one := getattr(model, name, None), "parameters")), None):
        model = inner
    return model


def _config(model: Any) -> dict[str, Any]:
    config: Any = getattr(model, "config", None)
    found = config.to_dict() if hasattr(config, "to_dict") else config
    return dict(found) if isinstance(found, Mapping) else {}


def _adapters(model: Any) -> tuple[str, ...]:
    adapters: Any = getattr(model, "peft_config", None)
    kinds = [getattr(one, "peft_type", None) for one in adapters.values()] if isinstance(adapters, Mapping) else []
    return tuple(str(getattr(kind, "value", kind)) for kind in kinds)


def _parameters(model: Any, named: list[tuple[str, Any]]) -> Iterator[Parameter]:
    whole = _whole_shapes(model)
    for name, one in named:
        packed = getattr(getattr(one, "quant_state", None), "shape", None)  # bitsandbytes: two weights of 4 bits a byte
        shape = whole.get(id(one)) or getattr(one, "ds_shape", None) or packed or one.shape  # a DTensor's: the whole
        yield Parameter(name, tuple(map(int, shape)), bool(one.requires_grad))


def _whole_shapes(model: Any) -> dict[int, Any]:
    """Ask FSDP1 for the shapes of the parameters whose shards it shows in their place (``use_orig_params``)."""
    shapes: dict[int, Any] = {}
    for module in model.modules():
        flat = getattr(getattr(module, "_handle", None), "flat_param", None)
        shapes.update(zip(map(id, getattr(flat, "_params", None) or ()), getattr(flat, "_shapes", ()), strict=False))
    return shapes


def _outputs(parameters: tuple[Parameter, ...]) -> int | None:
    """A critic and a reward model have a head of their own instead of the vocabulary."""
    heads = [one for one in parameters if one.name.rpartition(".")[0].rpartition(".")[2] == "score" and one.shape]
    return heads[0].shape[0] if heads else None


def _outputs_by_name(config: Mapping[str, Any]) -> int | None:
    names = config.get("architectures") or ()
    labels = config.get("num_labels") or len(config.get("id2label") or ()) or 1
    return int(labels) if any("Classification" in str(name) for name in names) else None


def _shared_by(parameters: Iterable[Any]) -> int:
    """Return how many ranks compute one model together: by Megatron, by the meshes of its parameters, else 0.

    Of several meshes the one that most ranks share counts: norms and embeddings are often left out of a tensor
    parallel plan.
    """
    megatron = sys.modules.get("megatron.core.parallel_state")
    if megatron is not None and megatron.model_parallel_is_initialized():
        sizes = (
            megatron.get_tensor_model_parallel_world_size(),
            megatron.get_pipeline_model_parallel_world_size(),
            megatron.get_context_parallel_world_size(),
        )
        return int(sizes[0] * sizes[1] * sizes[2])
    meshes = {id(mesh): mesh for one in parameters if (mesh := getattr(one, "device_mesh", None)) is not None}
    return max(map(_sharing, meshes.values()), default=0)


def _sharing(mesh: Any) -> int:
    """Multiply the dimensions of a mesh whose ranks compute one model together; 0 if they have no names."""
    names = mesh.mesh_dim_names
    return prod(int(mesh.size(names.index(name))) for name in SHARING if name in names) if names else 0
