"""What the memory of each device consisted of when most of it was reserved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from otel_rl.report.data.memory import MemoryParts
from otel_rl.report.data.report import Report
from otel_rl.report.format import percent, size
from otel_rl.report.terminal.fitting import MOST_RANKS, FittingTable, more
from otel_rl.report.terminal.style import NOTE, rank_name


class Part(NamedTuple):
    """One column."""

    name: str
    read: Callable[[MemoryParts], float | None]
    write: Callable[[float], str]

    def cell(self, row: MemoryParts) -> str:
        """Write a rank's; a dash where it is not known."""
        value = self.read(row)
        return "-" if value is None else self.write(value)


PARTS: Final = (
    Part("live", lambda row: row.allocated_bytes, size),
    Part("reserved", lambda row: row.reserved_bytes, size),
    Part("other", lambda row: row.non_torch_bytes, size),
    Part("activ.", lambda row: row.activation_bytes, size),
    Part("kv", lambda row: row.kv_cache_bytes, size),
    Part("comm ~", lambda row: row.comm_estimate_bytes, size),
    Part("fragm.", lambda row: row.fragmentation, percent),
    Part("slack", lambda row: row.slack, percent),
    Part("round.", lambda row: row.rounding, percent),
)
PARTS_NOTE: Final = (
    "At the end of the step with most reserved. Highest of the run: other (below\n"
    "torch, by whatever process), activations of a micro-batch, kv (keys and values\n"
    "in an engine's cache), comm (an estimate)."
)


def parts_table(report: Report) -> RenderableType | None:
    """Show what each device held, of many the fullest ones; None without a device."""
    rows = sorted(report.memory_parts, key=lambda row: -row.reserved_bytes)[:MOST_RANKS]
    rows.sort(key=lambda row: (row.role, row.rank))
    known = [part for part in PARTS if any(part.read(row) is not None for row in rows)]
    if not known:
        return None
    table = FittingTable()
    table.name("device")
    table.numbers(*(part.name for part in known))
    for row in rows:
        table.row(rank_name(report, row.role, row.rank), *(part.cell(row) for part in known))
    left = len(report.memory_parts) - len(rows)
    lines = [more(left, ", which --json has")] if left else []
    return Group(table, *lines, Text(PARTS_NOTE, style=NOTE))
