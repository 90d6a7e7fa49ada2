"""The memory of each rank: its peaks, and what that of its device consisted of when most of it was in use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final

from otel_rl import vocabulary as v
from otel_rl.journal.read import PointView
from otel_rl.report.data.details import MemoryParts
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import Report
from otel_rl.report.read.span_attributes import rank_of
from otel_rl.report.section import Block, Column, Section, Table, cell, foremost, more, notes, rank_name
from otel_rl.runs.format import percent, size

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
COLUMNS: Final[tuple[tuple[str, Callable[[MemoryParts], float | None], Callable[[float], str]], ...]] = (
    # heading, number, how it is written
    ("live", lambda row: row.allocated_bytes, size),
    ("reserved", lambda row: row.reserved_bytes, size),
    ("other", lambda row: row.non_torch_bytes, size),
    ("activ.", lambda row: row.activation_bytes, size),
    ("kv", lambda row: row.kv_cache_bytes, size),
    ("comm ~", lambda row: row.comm_estimate_bytes, size),
    ("fragm.", lambda row: row.fragmentation, percent),
    ("slack", lambda row: row.slack, percent),
    ("round.", lambda row: row.rounding, percent),
)
PARTS_NOTE: Final = (
    "At the end of the step with most reserved. Highest of the run: other (below torch, by whatever process), "
    "activations of a micro-batch, kv (keys and values in an engine's cache), comm (an estimate)."
)


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


def _peak_blocks(report: Report) -> list[Block]:
    if not report.memory:
        return []
    kinds = [[row for row in report.memory if row.kind == kind] for kind in {row.kind for row in report.memory}]
    highest = {id(row) for rows in kinds for row in foremost(rows, lambda row: -row.bytes)}
    rows = [row for row in report.memory if id(row) in highest]
    columns = [Column("memory", "name"), Column("kind", "fact"), Column("peak"), Column("last raised by", "name")]
    table = Table(columns)
    for row in rows:
        where = f", step {row.iteration}" if row.iteration is not None else ""
        bound = "" if row.is_exact else ">= "
        table.add(rank_name(report, row), row.kind, bound + size(row.bytes), row.stage + where)
    return [table, *more(len(report.memory) - len(rows))]


def _part_blocks(report: Report) -> list[Block]:
    rows = foremost(report.memory_parts, lambda row: -row.reserved_bytes)
    known = [column for column in COLUMNS if any(column[1](row) is not None for row in rows)]
    if not known:
        return []
    table = Table.of("device", *(head for head, _, _ in known))
    for row in rows:
        table.add(rank_name(report, row), *(cell(read(row), write) for _, read, write in known))
    return [table, *more(len(report.memory_parts) - len(rows)), *notes(PARTS_NOTE)]


MEMORY: Final = Section(title="Memory", data={"memory": lambda source: source.found.peaks.rows()}, blocks=_peak_blocks)
MEMORY_PARTS: Final = Section(
    title="Memory of the devices",
    data={"memory_parts": lambda source: source.points.memory.rows()},
    blocks=_part_blocks,
)
