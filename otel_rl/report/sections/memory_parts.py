"""What the memory of each device consisted of when most of it was taken."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.journal.read import PointView
from otel_rl.report.data.memory import MemoryParts
from otel_rl.report.data.report import Rank
from otel_rl.report.read.attributes import rank_of

OF_STEP: Final = (
    v.ALLOCATED, v.RESERVED, v.ACTIVE, v.REQUESTED, v.INACTIVE_SPLIT, v.FRAGMENTATION, v.SLACK, v.ROUNDING,
)  # fmt: skip
"""Read at one moment: the end of a step."""
HIGHEST: Final = (v.NON_TORCH, v.ACTIVATION, v.KV_BYTES_PEAK, v.KV_BYTES, v.COMM_BUFFERS)
NAMES: Final = frozenset((*OF_STEP, *HIGHEST))
MOST_STEPS: Final = 4096
"""Of a rank, whose points are kept until the older half, but for the one that counts, is forgotten."""


@dataclass(slots=True)
class _Of:
    """What is known of one rank: the numbers of its steps by their end, and the highest of the others."""

    steps: dict[int, dict[str, float]]
    highest: dict[str, float]


class Parts:
    """Collects the points of a run's devices."""

    def __init__(self) -> None:
        """Begin with nothing seen."""
        self._ranks: defaultdict[Rank, _Of] = defaultdict(lambda: _Of({}, {}))

    def see(self, point: PointView) -> None:
        """Take one point in; only those of ``NAMES`` count."""
        of = self._ranks[rank_of(point.resource)]
        if point.name in HIGHEST:
            of.highest[point.name] = max(of.highest.get(point.name, 0.0), point.value)
            return
        of.steps.setdefault(point.time_ns, {})[point.name] = point.value
        if len(of.steps) > MOST_STEPS:
            best = _fullest(of.steps)
            kept = {best, *sorted(of.steps)[MOST_STEPS // 2 :]}
            of.steps = {time_ns: values for time_ns, values in of.steps.items() if time_ns in kept}

    def rows(self) -> list[MemoryParts]:
        """List what is known by rank."""
        return [_row(rank, of) for rank, of in sorted(self._ranks.items()) if of.steps]


def _fullest(steps: dict[int, dict[str, float]]) -> int:
    """Find the end of the step at which most was reserved; of several the last."""
    return max(steps, key=lambda time_ns: (steps[time_ns].get(v.RESERVED, 0.0), time_ns))


def _row(rank: Rank, of: _Of) -> MemoryParts:
    values = of.steps[_fullest(of.steps)] | of.highest

    def size(name: str) -> int | None:
        return int(values[name]) if name in values else None

    return MemoryParts(
        role=rank.role,
        rank=rank.rank,
        allocated_bytes=size(v.ALLOCATED) or 0,
        reserved_bytes=size(v.RESERVED) or 0,
        active_bytes=size(v.ACTIVE),
        requested_bytes=size(v.REQUESTED),
        inactive_split_bytes=size(v.INACTIVE_SPLIT),
        fragmentation=values.get(v.FRAGMENTATION),
        slack=values.get(v.SLACK),
        rounding=values.get(v.ROUNDING),
        non_torch_bytes=size(v.NON_TORCH),
        activation_bytes=size(v.ACTIVATION),
        kv_cache_bytes=size(v.KV_BYTES_PEAK),
        kv_cache_size_bytes=size(v.KV_BYTES),
        comm_estimate_bytes=size(v.COMM_BUFFERS),
    )
