"""What the memory of a device is made of, from the points of its metrics."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from otel_rl import vocabulary as v
from otel_rl.journal.read import PointView
from otel_rl.report.data.details import MemoryParts
from otel_rl.report.data.ranks import Rank
from otel_rl.report.read.span_attributes import rank_of

BYTES: Final = {
    "allocated_bytes": v.ALLOCATED,
    "reserved_bytes": v.RESERVED,
    "active_bytes": v.ACTIVE,
    "requested_bytes": v.REQUESTED,
    "inactive_split_bytes": v.INACTIVE_SPLIT,
    "non_torch_bytes": v.NON_TORCH,
    "activation_bytes": v.ACTIVATION,
    "kv_cache_bytes": v.KV_BYTES_PEAK,
    "kv_cache_size_bytes": v.KV_BYTES,
    "comm_estimate_bytes": v.COMM_BUFFERS,
}
SHARES: Final = {"fragmentation": v.FRAGMENTATION, "slack": v.SLACK, "rounding": v.ROUNDING}
HIGHEST: Final = (v.NON_TORCH, v.ACTIVATION, v.KV_BYTES_PEAK, v.KV_BYTES, v.COMM_BUFFERS)


class MemoryPoints:
    """The points of a run's devices."""

    NAMES: Final = frozenset((*BYTES.values(), *SHARES.values()))

    def __init__(self) -> None:
        self._highest: defaultdict[Rank, dict[str, float]] = defaultdict(dict)
        self._steps: defaultdict[Rank, dict[int, dict[str, float]]] = defaultdict(dict)
        """The numbers of each step by its end."""

    def add(self, point: PointView) -> None:
        rank = rank_of(point.resource)
        if point.name in HIGHEST:
            highest = self._highest[rank]
            highest[point.name] = max(highest.get(point.name, 0.0), point.value)
        else:
            self._steps[rank].setdefault(point.time_ns, {})[point.name] = point.value

    def rows(self) -> list[MemoryParts]:
        return [_row(rank, steps, self._highest[rank]) for rank, steps in sorted(self._steps.items())]


def _row(rank: Rank, steps: dict[int, dict[str, float]], highest: dict[str, float]) -> MemoryParts:
    fullest = max(steps, key=lambda time_ns: (steps[time_ns].get(v.RESERVED, 0.0), time_ns))
    values = steps[fullest] | highest
    numbers: dict[str, Any] = {field: int(values[name]) if name in values else None for field, name in BYTES.items()}
    numbers |= {field: values.get(name) for field, name in SHARES.items()}
    numbers |= {field: numbers[field] or 0 for field in ("allocated_bytes", "reserved_bytes")}
    return MemoryParts(role=rank.role, rank=rank.rank, **numbers)
