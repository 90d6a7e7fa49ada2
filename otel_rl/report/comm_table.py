"""The table of collectives of the terminal verdict."""

from __future__ import annotations

from statistics import median
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from otel_rl.report.format import number, seconds
from otel_rl.report.model import CommRow, Rank, Report
from otel_rl.report.style import NOTE, RANK_COLUMN, plain_table, rank_name

RESERVED: Final = 32
"""Width of the columns that are no rank's."""
SHORT_HEADS: Final = ("shortest", "median", "longest")


def comm_table(report: Report, width: int) -> RenderableType | None:
    """Show how many collectives ran in each stage and how long, by rank where they fit; None where none was seen."""
    if not report.comm:
        return None
    ranks = sorted({Rank(one.role, one.rank) for row in report.comm for one in row.ranks})
    fits = len(ranks) * RANK_COLUMN + RESERVED <= width
    heads = [rank_name(report, rank.role, rank.rank) for rank in ranks] if fits else SHORT_HEADS
    table = plain_table()
    table.add_column("collectives in", no_wrap=True)
    for name in ("per step", *heads):
        table.add_column(Text(name), justify="right", no_wrap=True)
    for row in report.comm:
        times = {Rank(one.role, one.rank): one.time_s for one in row.ranks}
        shown = [times.get(rank) for rank in ranks] if fits else _short(list(times.values()))
        cells = ["-" if time_s is None else seconds(time_s) for time_s in shown]
        table.add_row(row.stage, _per_step(row), *cells)
    notes = ["Means per step: calls of a rank, and its time in them with waiting for others."]
    if any(stage.is_comm_hidden for stage in report.stages):
        notes.append("Those of compiled regions and of DDP on a device are not among them: Python does not see these.")
    return Group(table, *(Text(note, style=NOTE) for note in notes))


def _short(times_s: list[float]) -> list[float]:
    return [min(times_s), median(times_s), max(times_s)]


def _per_step(row: CommRow) -> str:
    """Say how many a rank calls; from the fewest to the most where the ranks differ."""
    counts = [one.count for one in row.ranks]
    ends = dict.fromkeys(f"{count:.1f}".removesuffix(".0") if count >= 1 else number(count) for count in sorted(counts))
    names = list(ends)
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
