"""The per-rank table of the terminal verdict."""

from __future__ import annotations

from statistics import median
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from otel_rl.analysis.stragglers import STRAGGLER_RATIO
from otel_rl.report.data.report import BalanceRow, Rank, RankSeconds, Report
from otel_rl.report.format import seconds
from otel_rl.report.terminal.fitting import LEAST_NAME, MOST_RANKS, FittingTable, more, shorten
from otel_rl.report.terminal.style import NOTE, WARNING, rank_name

MOST_ROWS: Final = 40
"""Stages that are listed, those with a slow rank first; JSON has all."""
MARK: Final = " *"


def balance_table(report: Report, width: int) -> RenderableType | None:
    """Show own times by rank; with more ranks than fit, the fastest, the median and the slowest. None for one rank."""
    rows = [row for row in report.balance if len(row.own) > 1]
    if not rows:
        return None
    ranks = sorted({Rank(one.role, one.rank) for row in rows for one in row.own})
    places = sorted(range(len(rows)), key=lambda place: rows[place].straggler is None)[:MOST_ROWS]
    shown = [rows[place] for place in sorted(places)]
    table = _full(report, shown, ranks) if len(ranks) <= MOST_RANKS else None
    if table is None or not table.fits(width):
        table = _short(report, shown)
    lines = [more(len(rows) - len(shown), " stages")] if len(shown) < len(rows) else []
    return Group(table, *lines, *(Text(note, style=NOTE) for note in _notes(report, rows)))


def _notes(report: Report, rows: list[BalanceRow]) -> list[str]:
    """Explain own time and the mark."""
    marked = {row.stage for row in rows if not row.is_comparable}
    stages = [stage for stage in report.stages if stage.inside is None and stage.stage in marked]
    notes = ["Own time: median of the steps with the stage, without the collectives in it."]
    if any(stage.is_comm_hidden for stage in stages):
        notes.append("* Collectives hide inside and cannot be separated: no rank is named.")
    if any(stage.is_host_clock for stage in stages):
        notes.append("* Timed on the host: launches of device work, not the work: no rank is named.")
    return notes


def _full(report: Report, rows: list[BalanceRow], ranks: list[Rank]) -> FittingTable:
    table = FittingTable()
    table.name("own time")
    table.numbers(*(rank_name(report, rank.role, rank.rank) for rank in ranks))
    table.fact("slowest")
    for row in rows:
        own = {Rank(one.role, one.rank): one.own_s for one in row.own}
        cells = [_cell(own.get(rank), rank in (row.straggler, *row.tied)) for rank in ranks]
        table.row(_name(row), *cells, _slowest(report, row))
    return table


def _short(report: Report, rows: list[BalanceRow]) -> FittingTable:
    table = FittingTable()
    table.name("own time")
    table.numbers("fastest", "median", "longest")
    table.fact("slowest")
    for row in rows:
        own = sorted(one.own_s for one in row.own)
        cells = [_cell(own[0]), _cell(median(own)), _cell(own[-1], row.straggler is not None)]
        table.row(_name(row), *cells, _slowest(report, row))
    return table


def _name(row: BalanceRow) -> str:
    return row.stage if row.is_comparable else row.stage + MARK


def _cell(own_s: float | None, is_slow: bool = False) -> Text:
    return Text("-" if own_s is None else seconds(own_s), style=WARNING if is_slow else "")


def _slowest(report: Report, row: BalanceRow) -> Text:
    if not row.is_comparable:
        return Text("-", style=NOTE)
    if row.straggler is None:
        return Text(_not_slow(report, row), style=NOTE)
    name = shorten(rank_name(report, row.straggler.role, row.straggler.rank), LEAST_NAME)
    if row.tied:
        name = f"{name} and {row.tied[0].rank}" if len(row.tied) == 1 else f"{len(row.tied) + 1} ranks"
    how = "at times" if row.ratio is None else f"{row.ratio:.1f}x the others"
    return Text(f"{name}, {how}", style=WARNING)


def _not_slow(report: Report, row: BalanceRow) -> str:
    """Say why nobody is slow: a stage of one rank alone, nearly equal times, or times too short to matter."""
    if row.ratio is None:
        return _only(report, row)
    return "even" if row.ratio < STRAGGLER_RATIO else "negligible"


def _only(report: Report, row: BalanceRow) -> str:
    busy: list[RankSeconds] = [one for one in row.own if one.own_s > 0]
    return f"only {shorten(rank_name(report, busy[0].role, busy[0].rank), LEAST_NAME)}" if len(busy) == 1 else "-"
