"""The memory of each rank: its peaks, and what that of its device consisted of when most of it was in use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from otel_rl.report.data.details import MemoryParts
from otel_rl.report.data.report import Report
from otel_rl.report.section import Block, Column, Section, Table, cell, foremost, more, notes, rank_name
from otel_rl.runs.format import percent, size

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


MEMORY: Final = Section(title="Memory", blocks=_peak_blocks)
MEMORY_PARTS: Final = Section(
    title="Memory of the devices",
    blocks=_part_blocks,
)
