"""What the memory of each device consisted of when most of it was reserved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from otel_rl.report.format import percent, size
from otel_rl.report.memory_model import MemoryParts
from otel_rl.report.model import Report
from otel_rl.report.style import NOTE, plain_table, rank_name


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
GAP: Final = 2
"""Columns between two of the table."""


def parts_table(report: Report, width: int) -> RenderableType | None:
    """Show what each device held; the last columns are left out where the terminal is too narrow.

    None without a device.
    """
    rows = report.memory_parts
    names = [rank_name(report, row.role, row.rank) for row in rows]
    known = [part for part in PARTS if any(part.read(row) is not None for row in rows)]
    if not known:
        return None
    table = plain_table()
    table.add_column("device", no_wrap=True)
    left = width - max(len(text) for text in ("device", *names))
    shown = []
    for part in known:
        left -= GAP + max(len(text) for text in (part.name, *map(part.cell, rows)))
        if left >= 0:
            shown.append(part)
            table.add_column(part.name, justify="right", no_wrap=True)
    for name, row in zip(names, rows, strict=True):
        table.add_row(name, *(part.cell(row) for part in shown))
    return Group(table, Text(PARTS_NOTE, style=NOTE))
