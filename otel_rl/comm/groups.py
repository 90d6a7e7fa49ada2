"""Process groups of torch.distributed: how records name them, and the order of the collectives in each."""

from __future__ import annotations

import sys
import weakref
from contextlib import suppress
from typing import Any

from otel_rl.comm.memory import comm
from otel_rl.guard import guard

KINDS = 32
"""Descriptions that become labels of metrics; those of further groups are ``other``."""
SHORT = 8
"""So much of a group's own name is kept; torch calls some by the hash of their ranks."""
UNDESCRIBED = "undefined"
"""How torch describes a group whose maker did not."""


class Group:
    """One process group as this rank sees it.

    ``sequence`` counts the collectives that this rank has begun in the group since it was first seen. All ranks of a
    group begin its collectives in the same order, so equal numbers are the same collective, without any clock. It does
    not hold where ranks are instrumented at different points of their run, where several threads use one group at
    once, and inside compiled regions, whose collectives are not counted.
    """

    __slots__ = ("kind", "name", "ranks", "sequence", "size")

    def __init__(self, name: str, kind: str, size: int, ranks: tuple[int, ...] = ()) -> None:
        self.name = name
        self.kind = kind
        self.size = size
        self.ranks = ranks
        """Its members as ranks of the world; empty where they are not known."""
        self.sequence = 0


def group_of(value: Any) -> Group | None:
    """Find the group that an argument of a collective means; None where there is none, or it cannot be known.

    Args:
        value: a process group, its name, a device mesh of one dimension, a mesh with a dimension, or None for all.

    Cost: 0.3 us for a process group that is known.
    """
    if value is None:
        c10d = sys.modules.get("torch.distributed.distributed_c10d")
        value = c10d.GroupMember.WORLD if c10d is not None else None
        if value is None:
            return None
    groups = comm.groups
    known = groups.get(id(value))
    if known is None and (isinstance(value, (str, tuple)) or hasattr(value, "get_group")):
        value = _resolve(value)
        known = groups.get(id(value))
    return known[1] if known is not None else _describe(value)


def _resolve(value: Any) -> Any:
    if isinstance(value, str):
        return sys.modules["torch.distributed.distributed_c10d"]._resolve_process_group(value)
    mesh, *dimension = value if isinstance(value, tuple) else (value,)
    return mesh.get_group(*dimension)


def _describe(process_group: Any) -> Group | None:
    """Describe a group that was not seen before; it is not kept alive, since it holds communicators and buffers."""
    own = getattr(process_group, "group_name", None)
    if not isinstance(own, str):
        return None
    described = str(getattr(process_group, "group_desc", "") or UNDESCRIBED)
    kind = "group" if described == UNDESCRIBED else described[:64]
    name = kind if own == "0" else f"{kind} {own[:SHORT]}"
    if comm.worlds > 1:
        name += f" of world {comm.worlds}"
    found = Group(name, _label(kind), int(process_group.size()), _ranks_of(process_group))
    groups, key = comm.groups, id(process_group)
    groups[key] = weakref.ref(process_group, lambda _: groups.pop(key, None)), found
    return found


def _ranks_of(process_group: Any) -> tuple[int, ...]:
    with guard("read the ranks of a process group"), suppress(KeyError, AttributeError):  # torch does not know it
        c10d = sys.modules["torch.distributed.distributed_c10d"]
        return tuple(map(int, c10d.get_process_group_ranks(process_group)))
    return ()


def _label(kind: str) -> str:
    kinds = comm.kinds
    if kind not in kinds:
        if len(kinds) >= KINDS:
            return "other"
        kinds.add(kind)
    return kind
