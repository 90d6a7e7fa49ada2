"""The table of collectives of the terminal verdict."""

from __future__ import annotations

from statistics import median
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from otel_rl.report.data.report import CommRow, Rank, Report
from otel_rl.report.format import number, seconds
from otel_rl.report.terminal.fitting import MOST_RANKS, FittingTable, more
from otel_rl.report.terminal.style import NOTE, rank_name

MOST_ROWS: Final = 40
"""Stages that are listed, those with the longest times; JSON has all."""
SHORT_HEADS: Final = ("shortest", "median", "longest")


def comm_table(report: Report, width: int) -> RenderableType | None:
    """Show how many collectives ran in each stage and how long, by rank where they fit; None where none was seen."""
    if not report.comm:
        return None
    ranks = sorted({Rank(one.role, one.rank) for row in report.comm for one in row.ranks})
    longest = {row.stage for row in sorted(report.comm, key=_longest, reverse=True)[:MOST_ROWS]}
    rows = [row for row in report.comm if row.stage in longest]
    table = _table(report, rows, ranks) if len(ranks) <= MOST_RANKS else None
    if table is None or not table.fits(width):
        table = _table(report, rows, [])
    lines = [more(len(report.comm) - len(rows), " stages")] if len(rows) < len(report.comm) else []
    notes = ["Means per step: calls of a rank, and its time in them with waiting for others."]
    if any(stage.is_comm_hidden for stage in report.stages):
        notes.append("Those of compiled regions and of DDP on a device are not among them: Python does not see these.")
    return Group(table, *lines, *(Text(note, style=NOTE) for note in notes))


def _table(report: Report, rows: list[CommRow], ranks: list[Rank]) -> FittingTable:
    """Lay out the times of each rank; without ranks those of the fastest, the median and the slowest."""
    table = FittingTable()
    table.name("collectives in")
    heads = [rank_name(report, rank.role, rank.rank) for rank in ranks]
    table.numbers("per step", *(heads or SHORT_HEADS))
    for row in rows:
        times = {Rank(one.role, one.rank): one.time_s for one in row.ranks}
        shown = [times.get(rank) for rank in ranks] if ranks else _short(list(times.values()))
        table.row(row.stage, _per_step(row), *("-" if time_s is None else seconds(time_s) for time_s in shown))
    return table


def _longest(row: CommRow) -> float:
    return max(one.time_s for one in row.ranks)


def _short(times_s: list[float]) -> list[float]:
    return [min(times_s), median(times_s), max(times_s)]


def _per_step(row: CommRow) -> str:
    """Say how many a rank calls; from the fewest to the most where the ranks differ."""
    counts = [one.count for one in row.ranks]
    ends = dict.fromkeys(f"{count:.1f}".removesuffix(".0") if count >= 1 else number(count) for count in sorted(counts))
    names = list(ends)
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
