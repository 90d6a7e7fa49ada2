"""The memory of each rank: its peaks, and what that of its device consisted of when most of it was taken."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.journal.read import PointView
from otel_rl.report.data.details import MemoryParts
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import Report
from otel_rl.report.format import percent, size
from otel_rl.report.read.span_attributes import rank_of
from otel_rl.report.section import Block, Column, Section, Table, foremost, more, notes, rank_name

OF_STEP: Final = (
    v.ALLOCATED, v.RESERVED, v.ACTIVE, v.REQUESTED, v.INACTIVE_SPLIT, v.FRAGMENTATION, v.SLACK, v.ROUNDING,
)  # fmt: skip
HIGHEST: Final = (v.NON_TORCH, v.ACTIVATION, v.KV_BYTES_PEAK, v.KV_BYTES, v.COMM_BUFFERS)
NAMES: Final = frozenset((*OF_STEP, *HIGHEST))
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


@dataclass(slots=True)
class _Of:
    """The numbers of one rank: of its steps by their end, and the highest of the others."""

    steps: dict[int, dict[str, float]]
    highest: dict[str, float]


class MemoryPoints:
    """The points of a run's devices."""

    NAMES: Final = NAMES

    def __init__(self) -> None:
        self._ranks: defaultdict[Rank, _Of] = defaultdict(lambda: _Of({}, {}))

    def add(self, point: PointView) -> None:
        of = self._ranks[rank_of(point.resource)]
        if point.name in HIGHEST:
            of.highest[point.name] = max(of.highest.get(point.name, 0.0), point.value)
            return
        of.steps.setdefault(point.time_ns, {})[point.name] = point.value

    def rows(self) -> list[MemoryParts]:
        return [_row(rank, of) for rank, of in sorted(self._ranks.items()) if of.steps]


def _fullest(steps: dict[int, dict[str, float]]) -> int:
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
        cells = ["-" if (value := read(row)) is None else write(value) for _, read, write in known]
        table.add(rank_name(report, row), *cells)
    return [table, *more(len(report.memory_parts) - len(rows)), *notes(PARTS_NOTE)]


MEMORY: Final = Section(title="Memory", data={"memory": lambda source: source.found.peaks.rows()}, blocks=_peak_blocks)
MEMORY_PARTS: Final = Section(
    title="Memory of the devices",
    data={"memory_parts": lambda source: source.points.memory.rows()},
    blocks=_part_blocks,
)
