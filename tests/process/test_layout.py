"""Where a rank stands in the parallel layout, told by objects of the shapes that the libraries have."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from math import prod
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.flusher import thread
from otel_rl.process.layout import Layout, layout
from otel_rl.process.state import Runtime
from tests.fixtures import Recording

DP, TP, PP, CP, EP = v.RANK_DP, v.RANK_TP, v.RANK_PP, v.RANK_CP, v.RANK_EP


class Mesh:
    """What a ``DeviceMesh`` of torch 2.4 to 2.15 has, on one rank; row-major, as ``init_device_mesh`` makes it."""

    def __init__(
        self, rank: int, shape: tuple[int, ...], names: tuple[str, ...] | None, device_type: str = "cuda"
    ) -> None:
        self.shape, self.mesh_dim_names, self.device_type = shape, names, device_type
        places = list(itertools.product(*map(range, shape)))
        self._coordinate_on_dim = places[rank] if rank < len(places) else None

    def size(self, mesh_dim: int | None = None) -> int:
        """Ranks of the mesh, or along a dimension."""
        return prod(self.shape) if mesh_dim is None else self.shape[mesh_dim]

    def get_coordinate(self) -> tuple[int, ...] | None:
        """Place of this rank; None where it is not in the mesh."""
        return self._coordinate_on_dim

    def get_local_rank(self, mesh_dim: str) -> int:
        """Would resolve a process group."""
        raise AssertionError("a process group was asked for")


def seen(world_size: int, *meshes: Mesh) -> dict[str, int]:
    """What one rank knows after these."""
    layout = Layout()
    for mesh in meshes:
        layout.read_mesh(mesh, world_size)
    return layout.known()


@pytest.mark.parametrize(
    ("shape", "names", "rank", "expected"),
    [
        ((4,), ("dp",), 3, {DP: 3}),
        ((4,), ("fsdp",), 3, {DP: 3}),
        ((2, 2), ("replicate", "shard"), 2, {DP: 2}),
        ((2, 2), ("dp_replicate", "tp"), 3, {DP: 1, TP: 1}),
        ((2, 2), ("ddp", "fsdp"), 3, {DP: 3}),
        ((2, 2), ("dp", "sp"), 3, {DP: 1, CP: 1}),
        ((2, 2), ("data_parallel", "sequence_parallel"), 1, {DP: 0, CP: 1}),
        ((2, 2), ("data_parallel", "tensor_parallel"), 2, {DP: 1, TP: 0}),
        ((4,), ("tp",), 3, {DP: 0, TP: 3}),
        ((2, 2), ("dp", "ep"), 3, {DP: 3, EP: 1}),
        ((2, 2, 2, 1, 2), ("pp", "dp_replicate", "dp_shard", "cp", "tp"), 13, {PP: 1, DP: 2, CP: 0, TP: 1}),
        ((2, 1, 2, 2), ("pp", "dp_replicate", "efsdp", "ep"), 5, {EP: 1}),
        ((2, 2), ("dp", "infer_tp"), 3, {}),
        ((2, 2), None, 3, {}),
        ((2,), ("tp",), 1, {}),
        ((2,), ("tp",), 3, {}),
    ],
)
def test_a_mesh_says_the_place(
    shape: tuple[int, ...], names: tuple[str, ...] | None, rank: int, expected: dict[str, int]
) -> None:
    """Of all ranks, by names that are known; without one of them nobody can say whose samples are whose."""
    world_size = max(4, prod(shape))
    assert expected == seen(world_size, Mesh(rank, shape, names))


def test_of_several_meshes_the_one_with_most_axes_counts() -> None:
    """FSDP's own flattens the others into it (verl, torchtitan, transformers); that of a rollout engine is of CPUs."""
    fsdp, ulysses = Mesh(3, (4,), ("fsdp",)), Mesh(3, (2, 2), ("dp", "sp"))
    sglang = Mesh(3, (1, 2, 2), ("dp", "tp", "pp"), "cpu")
    expected = {DP: 1, CP: 1}
    assert [expected] * 4 == [
        seen(4, *order)
        for order in ((fsdp, ulysses), (ulysses, fsdp), (fsdp, ulysses, sglang), (sglang, ulysses, fsdp))
    ]
    experts = Mesh(3, (1, 1, 2, 2), ("pp", "dp_replicate", "efsdp", "ep"))
    assert {DP: 3, PP: 0, TP: 0, EP: 1} == seen(4, Mesh(3, (1, 1, 4, 1), ("pp", "dp_replicate", "fsdp", "tp")), experts)


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([], [{DP: 0, CP: 0}, {DP: 0, CP: 1}, {DP: 1, CP: 0}, {DP: 1, CP: 1}]),
        ([((4, 2), ("dp", "sp"))], [{DP: 0, CP: 0}, {DP: 0, CP: 1}, {DP: 1, CP: 0}, {DP: 1, CP: 1}]),
        ([((2, 4), ("dp", "sp"))], [{DP: 0, CP: 0}, {DP: 0, CP: 1}, {}, {}]),
        ([((4, 2), ("dp", "tp"))], [{DP: 0, CP: 0, TP: 0}, {DP: 0}, {DP: 1, CP: 0, TP: 0}, {DP: 1}]),
        ([((2, 4), ("dp", "sp")), ((4, 2), ("dp", "sp"))], [{DP: 0, CP: 0}, {DP: 0, CP: 1}, {}, {}]),
        ([((8, 1), ("dp", "sp")), ((2, 4), ("dp", "sp"))], [{DP: 0, CP: 0}, {}, {}, {}]),
    ],
)
def test_of_meshes_with_equally_many_axes_what_they_say_alike_counts(
    others: list[tuple[tuple[int, ...], tuple[str, ...]]], expected: list[dict[str, int]]
) -> None:
    """Two models with layouts of their own (verl's actor and critic): no place is that of both; not the last one's."""
    shapes = [((4, 2), ("dp", "sp")), *others]
    assert expected == [seen(8, *(Mesh(rank, *of) for of in shapes)) for rank in range(4)]


NAMES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")


@given(st.permutations(NAMES), st.tuples(*[st.integers(1, 3)] * 5))
def test_places_are_all_there_once(names: list[str], shape: tuple[int, ...]) -> None:
    """Whatever the order of the axes: each place has one rank, and data-parallel groups are numbered from 0."""
    world_size, sizes = prod(shape), dict(zip(names, shape, strict=True))
    found = [seen(world_size, Mesh(rank, shape, tuple(names))) for rank in range(world_size)]
    expected = itertools.product(
        range(sizes["dp_replicate"] * sizes["dp_shard"]), range(sizes["tp"]), range(sizes["pp"]), range(sizes["cp"])
    )
    assert Counter(expected) == Counter((one[DP], one[TP], one[PP], one[CP]) for one in found)


class Group:
    """A process group, on one rank."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def rank(self) -> int:
        """Of this process."""
        return self._rank


def megatron(**ranks: int | None) -> ModuleType:
    """``megatron.core.parallel_state``: getters that assert where a group was not made, one with arguments."""
    module: Any = ModuleType("megatron.core.parallel_state")

    def getter(value: int | None) -> Any:
        def ask(with_context_parallel: bool = False, partial_data_parallel: bool = False) -> int:
            assert value is not None, "group is not initialized"
            return value

        return ask

    module.model_parallel_is_initialized = lambda: any(value is not None for value in ranks.values())
    for name in ("data_parallel", "tensor_model_parallel", "pipeline_model_parallel", "context_parallel"):
        setattr(module, f"get_{name}_rank", getter(ranks.get(name)))
    if "expert_model_parallel" in ranks:
        module.get_expert_model_parallel_rank = getter(ranks["expert_model_parallel"])
    return module  # type: ignore[no-any-return]


class Grid:
    """``deepspeed.runtime.pipe.topology.PipelineParallelGrid``."""

    def get_pipe_parallel_rank(self) -> int:
        """The stage."""
        return 1

    def get_data_parallel_rank(self) -> int:
        """Which pipeline."""
        return 2

    def get_model_parallel_rank(self) -> int:
        """Of stages and slices together: no axis of ours."""
        return 5

    def get_slice_parallel_rank(self) -> int:
        """As Megatron slices tensors."""
        return 3


MESH = Mesh(3, (4,), ("fsdp",))


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        ({}, {DP: 3}),
        ({"megatron.core.parallel_state": megatron()}, {DP: 3}),
        (
            {"megatron.core.parallel_state": megatron(data_parallel=1, tensor_model_parallel=0, context_parallel=2)},
            {DP: 1, TP: 0, CP: 2},
        ),
        (
            {
                "megatron.core.parallel_state": megatron(
                    data_parallel=1, pipeline_model_parallel=2, expert_model_parallel=3
                ),
                "deepspeed.utils.groups": SimpleNamespace(mpu=Grid()),
            },
            {DP: 1, PP: 2, EP: 3},
        ),
        ({"deepspeed.utils.groups": SimpleNamespace(mpu=None, _EXPERT_PARALLEL_GROUP={})}, {DP: 3}),
        (
            {"deepspeed.utils.groups": SimpleNamespace(mpu=None, _EXPERT_PARALLEL_GROUP={"ep_size_2": Group(1)})},
            {DP: 3, EP: 1},
        ),
        (
            {
                "deepspeed.utils.groups": SimpleNamespace(
                    mpu=megatron(data_parallel=1, tensor_model_parallel=1),
                    _EXPERT_PARALLEL_GROUP={"ep_size_2": Group(1), "ep_size_4": Group(3)},
                )
            },
            {DP: 1, TP: 1},
        ),
    ],
)
def test_libraries_say_the_place(
    monkeypatch: pytest.MonkeyPatch, modules: dict[str, Any], expected: dict[str, int]
) -> None:
    """The first that knows anything; groups that were not made, and getters that would make one, say nothing."""
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    assert expected == seen(4, MESH)


def test_a_pipeline_of_deepspeed_says_the_place() -> None:
    """By its grid, of which nothing is kept."""
    layout = Layout()
    layout.read_grid(Grid())
    layout.read_mesh(MESH, 4)
    assert {DP: 2, TP: 3, PP: 1} == layout.known()


def test_accelerates_mesh_is_found_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made before anybody looked; its axes of size 1 have no dimension."""
    shared = {"device_mesh": Mesh(3, (2, 2), ("dp_shard", "tp"))}
    accelerate = SimpleNamespace(AcceleratorState=SimpleNamespace(_shared_state=shared))
    monkeypatch.setitem(sys.modules, "accelerate.state", accelerate)
    distributed = SimpleNamespace(is_initialized=lambda: True, get_world_size=lambda: 4)
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    assert {DP: 1, TP: 1} == Layout().known()


def test_the_place_is_in_the_resource_from_the_first_step_on(stubbed: Recording) -> None:
    """What is known when it begins; later nothing is, so that series keep their labels."""
    stubbed.start()
    layout.read_mesh(Mesh(3, (2, 2), ("dp", "tp")), 4)
    with otel_rl.step(1):
        layout.read_mesh(Mesh(3, (1, 2, 2), ("pp", "dp", "tp")), 4)
    with otel_rl.step(2):
        pass
    spans = [span for span in stubbed.stop().spans() if span.name.startswith(v.RANK_SPAN)]
    assert [{DP: 1, TP: 1}] * len(spans) == [
        {key: span.resource[key] for key in (DP, TP, PP, CP, EP) if key in span.resource} for span in spans
    ]


def test_without_a_step_the_place_is_in_the_first_metrics(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some time after the first span the resource is final; what is written in that very cycle has it already."""
    monkeypatch.setattr(thread, "FREEZE_S", -1.0)
    layout.read_mesh(Mesh(3, (2, 2), ("dp", "tp")), 4)
    for _ in range(3):
        with otel_rl.stage("tool"):
            recording.tick(1)
        otel_rl.flush()
    places = [{key: point.resource.get(key) for key in (DP, TP, PP)} for point in recording.stop().points()]
    assert places
    assert [{DP: 1, TP: 1, PP: None}] * len(places) == places


def test_another_world_takes_the_place_away() -> None:
    """After an elastic restart the rank stands elsewhere, and the resource is frozen: unknown beats wrong."""
    runtime = Runtime()
    layout.read_mesh(MESH, 4)
    runtime.freeze()
    layout.renew()
    known = [runtime.identity.coordinates]
    for rank, world_size in ((0, 1), (0, 4), (1, 4)):
        runtime.identify(rank=rank, world_size=world_size)
        known.append(runtime.identity.coordinates)
    assert [{DP: 3}, {DP: 3}, {}, {}] == known
