"""Process groups as records name them, on objects shaped like torch's."""

from __future__ import annotations

import gc
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from otel_rl.comm import groups
from otel_rl.comm.groups import Group, group_of
from otel_rl.comm.memory import comm
from tests.fixtures import Recording


class ProcessGroup:
    """What torch's tells of itself."""

    def __init__(self, name: str, description: str = "undefined", size: int = 2) -> None:
        self.group_name, self.group_desc, self._size = name, description, size

    def size(self) -> int:
        """How many ranks."""
        return self._size


@pytest.fixture
def world(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> ProcessGroup:
    """A default process group, and torch's way to find one by its name."""
    default, other = ProcessGroup("0", "default_pg", 4), ProcessGroup("1", "mesh_dp")
    c10d = SimpleNamespace(
        GroupMember=SimpleNamespace(WORLD=default), _resolve_process_group={"0": default, "1": other}.__getitem__
    )
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", c10d)
    return default


def told(group: Group | None) -> tuple[Any, ...] | None:
    """Say what records say."""
    return None if group is None else (group.name, group.kind, group.size)


@pytest.mark.parametrize(
    ("process_group", "expected"),
    [
        (ProcessGroup("0", "default_pg", 4), ("default_pg", "default_pg", 4)),
        (ProcessGroup("3"), ("group 3", "group", 2)),
        (ProcessGroup("0f3a9b1c2d4e5f60718293a4b5c6d7e8f9012345", "mesh_tp"), ("mesh_tp 0f3a9b1c", "mesh_tp", 2)),
        (ProcessGroup("7", ""), ("group 7", "group", 2)),
        (ProcessGroup("7", "x" * 500), (f"{'x' * 64} 7", "x" * 64, 2)),
        (SimpleNamespace(group_name=None), None),
        (object(), None),
    ],
)
def test_a_group_is_named_by_its_maker_and_torch(
    recording: Recording, process_group: Any, expected: tuple[Any, ...] | None
) -> None:
    """Short, and the same on all ranks; what is no group has no name."""
    assert expected == told(group_of(process_group))


def test_all_ways_to_name_a_group_mean_one(world: ProcessGroup) -> None:
    """None is the default one; functional collectives take names, meshes and a mesh with a dimension too."""
    by_name = group_of("1")
    mesh = SimpleNamespace(get_group=lambda *dimension: sys.modules["torch.distributed.distributed_c10d"]
                           ._resolve_process_group("1"))  # fmt: skip
    assert ("default_pg", "default_pg", 4) == told(group_of(None))
    assert group_of(None) is group_of(world) is group_of("0")
    assert by_name is not None
    assert by_name is group_of((mesh, 0)) is group_of(mesh)


def test_without_a_process_group_there_is_none(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is made, and without torch."""
    monkeypatch.setitem(
        sys.modules, "torch.distributed.distributed_c10d", SimpleNamespace(GroupMember=SimpleNamespace(WORLD=None))
    )
    assert group_of(None) is None
    monkeypatch.delitem(sys.modules, "torch.distributed.distributed_c10d")
    assert group_of(None) is None


def test_a_group_is_not_kept_alive(recording: Recording) -> None:
    """It holds communicators; the next one may have its address and is another."""
    process_group = ProcessGroup("5")
    assert 0 == group_of(process_group).sequence  # type: ignore[union-attr]
    assert 1 == len(comm.groups)
    del process_group
    gc.collect()
    assert {} == comm.groups


def test_descriptions_of_metrics_are_few(recording: Recording) -> None:
    """A program that describes each group differently makes no more series than these."""
    alive = [ProcessGroup(str(number), f"group of batch {number}") for number in range(100)]
    kinds = {group_of(one).kind for one in alive}  # type: ignore[union-attr]
    assert groups.KINDS + 1 == len(kinds)
    assert "other" in kinds
