"""The place of this rank in the parallel layout, as far as the program's own libraries can say it.

Read from what lies in this process: no collective, no process group made, no device asked. Sources, the first that says
anything counts: Megatron-Core 0.8 to 0.16 (``core/parallel_state.py``, the getters behind verl's, ROLL's and slime's
``mpu``), DeepSpeed 0.15 to 0.18 (``runtime/pipe/topology.py``, ``utils/groups.py``), accelerate 1.10 to 1.15
(``parallelism_config.py``), then ``torch.distributed.device_mesh`` 2.4 to 2.15, whoever made the mesh.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from otel_rl import vocabulary as v
from otel_rl.process.memory import Memory

DP: Final = v.RANK_DP
EP: Final = v.RANK_EP
AXES: Final = {
    **dict.fromkeys(
        (
            "dp", "ddp", "fsdp", "batch", "replicate", "shard", "dp_replicate", "dp_shard", "dp_shard_mod_ep",
            "dp_shard_in_ep", "data_parallel",
        ),
        DP,
    ),
    **dict.fromkeys(("tp", "tensor_parallel"), v.RANK_TP),
    **dict.fromkeys(("pp", "pipeline_parallel"), v.RANK_PP),
    **dict.fromkeys(("cp", "sp", "context_parallel", "sequence_parallel"), v.RANK_CP),
    **dict.fromkeys(("ep", "expert_parallel"), EP),
}  # fmt: skip
"""Names of a mesh's dimensions: those of torchtitan, accelerate, transformers, verl, DeepSpeed and torch's pages."""
GETTERS: Final = {
    DP: ("get_data_parallel_rank",),
    v.RANK_TP: ("get_tensor_model_parallel_rank", "get_slice_parallel_rank"),
    v.RANK_PP: ("get_pipeline_model_parallel_rank", "get_pipe_parallel_rank"),
    v.RANK_CP: ("get_context_parallel_rank", "get_sequence_parallel_rank"),
    EP: ("get_expert_model_parallel_rank",),
}
"""How Megatron's ``mpu`` and DeepSpeed's grid, which stands in for one, are asked."""

DISPUTED: Final = -1
"""The place along an axis of which two of the program's layouts say different things."""

Coordinates = dict[str, int]


@dataclass(eq=False)
class Layout(Memory):
    """What is said of this rank's place; numbers only, nothing of the program's is kept alive."""

    of_grid: Coordinates = field(default_factory=dict)
    """From DeepSpeed's, of a pipeline."""
    of_meshes: Coordinates = field(default_factory=dict)
    """DISPUTED along axes that two meshes of equal weight place differently."""
    of_experts: Coordinates = field(default_factory=dict)
    """From a mesh of their own: they are laid out anew over the same ranks."""
    _weight: tuple[bool, int] = (False, -1)
    """The weight of the mesh that ``of_meshes`` comes from."""

    def read_mesh(self, mesh: Any, world_size: int) -> None:
        """Read a device mesh that the program has made.

        The one with the most axes beside the data-parallel one counts: FSDP's own flattens the others into it. A mesh
        of CPUs gives way to one of a device, since rollout engines make such for themselves (SGLang in verl). Of equal
        ones (two models with layouts of their own) only what they say alike counts; an axis that one lacks is one rank
        wide there. Rank 0 keeps its axes then and others do not, so that a reader of all ranks sees it.

        Args:
            mesh: ``DeviceMesh``; one that does not hold all ranks, or without names, says nothing.
            world_size: of the default process group.

        Cost: 3 us.
        """
        names, place = mesh.mesh_dim_names, mesh.get_coordinate()
        if not names or place is None or int(mesh.size()) != world_size:
            return
        axes = [AXES.get(name) for name in names]
        sizes = [int(mesh.size(dimension)) for dimension in range(len(axes))]
        if EP in axes:
            self.of_experts = {EP: int(place[axes.index(EP)])}
        if None in axes:
            return
        found: Coordinates = {DP: 0}
        for axis, index, size in zip(axes, map(int, place), sizes, strict=True):
            key = DP if axis == EP else str(axis)  # ranks with other experts have other samples
            found[key] = found.get(key, 0) * size + index
        weight = mesh.device_type != "cpu", len(found)
        if weight > self._weight:
            self.of_meshes, self._weight = found, weight
        elif weight == self._weight:
            self.of_meshes = _alike(self.of_meshes, found)

    def read_grid(self, grid: Any) -> None:
        """Read the grid of a pipeline of DeepSpeed."""
        self.of_grid = _ask(grid)

    def known(self) -> Coordinates:
        """Return the place by the resource's keys, without axes that are not known."""
        experts = {**_of_deepspeed_experts(), **self.of_experts}
        found = _of_megatron() or self.of_grid or _of_deepspeed() or self._of_meshes()
        return {key: place for key, place in {**experts, **found}.items() if place != DISPUTED}

    def _of_meshes(self) -> Coordinates:
        if not self.of_meshes:
            accelerate = sys.modules.get("accelerate.state")
            shared: Mapping[str, Any] = getattr(getattr(accelerate, "AcceleratorState", None), "_shared_state", {})
            mesh, distributed = shared.get("device_mesh"), sys.modules.get("torch.distributed")
            if mesh is not None and distributed is not None and distributed.is_initialized():
                self.read_mesh(mesh, distributed.get_world_size())
        return self.of_meshes


layout = Layout.keep("layout")


def _alike(one: Coordinates, other: Coordinates) -> Coordinates:
    places = {key: (one.get(key, 0), other.get(key, 0)) for key in {**one, **other}}
    return {key: first if first == second else DISPUTED for key, (first, second) in places.items()}


def _of_megatron() -> Coordinates:
    mpu = sys.modules.get("megatron.core.parallel_state")
    is_ready: Callable[[], bool] = getattr(mpu, "model_parallel_is_initialized", lambda: False)
    return _ask(mpu) if is_ready() else {}


def _of_deepspeed() -> Coordinates:
    """Return what its ``mpu`` says.

    DeepSpeed's own getters are not called: without an ``mpu`` they make a process group.
    """
    mpu = getattr(sys.modules.get("deepspeed.utils.groups"), "mpu", None)
    return {} if mpu is None else _ask(mpu)


def _of_deepspeed_experts() -> Coordinates:
    """Return the rank among experts.

    There is a group for each number of experts. Only if all have the same number is the rank known.
    """
    groups = sys.modules.get("deepspeed.utils.groups")
    found = list(getattr(groups, "_EXPERT_PARALLEL_GROUP", {}).values())
    return {EP: int(found[0].rank())} if len(found) == 1 else {}


def _ask(mpu: Any) -> Coordinates:
    found: Coordinates = {}
    for key, names in GETTERS.items():
        getter = next((getattr(mpu, name) for name in names if hasattr(mpu, name)), None)
        if getter is not None:
            with suppress(AssertionError):  # so they say that a group was not made
                found[key] = int(getter())
    return found
