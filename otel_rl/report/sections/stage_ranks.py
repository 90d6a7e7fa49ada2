"""Own times and collectives of the stages by rank, and who is slow in them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from statistics import median
from typing import Final

from otel_rl.analysis.stragglers import STRAGGLER_RATIO
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import BalanceRow, CommRow, Report
from otel_rl.report.section import Block, Column, Line, Section, Table, by_rank, cell, foremost, more, notes, rank_name
from otel_rl.runs.format import number, seconds, shorten

MOST_ROWS: Final = 40
LONGEST_RANK: Final = 16
MARK: Final = " *"


def _own_blocks(report: Report) -> list[Block]:
    rows = [row for row in report.balance if len(row.own) > 1]
    if not rows:
        return []
    ranks = sorted({one.who for row in rows for one in row.own})
    shown = foremost(rows, lambda row: row.straggler is None, MOST_ROWS)
    table = by_rank(ranks, partial(_own_table, report, shown))
    marked = {row.stage for row in rows if not row.is_comparable}
    stages = [stage for stage in report.stages if stage.inside is None and stage.stage in marked]
    lines = ["Own time: median of the steps with the stage, without the collectives in it."]
    if any(stage.is_comm_hidden for stage in stages):
        lines.append("* Collectives hide inside and cannot be separated: no rank is named.")
    if any(stage.is_host_clock for stage in stages):
        lines.append("* Timed on the host: launches of device work, not the work: no rank is named.")
    return [table, *more(len(rows) - len(shown), " stages"), *notes(*lines)]


def _own_table(report: Report, rows: list[BalanceRow], ranks: list[Rank]) -> Table:
    heads = map(Column, [rank_name(report, rank) for rank in ranks] or ("fastest", "median", "longest"))
    table = Table([Column("own time", "name"), *heads, Column("slowest", "fact")])
    for row in rows:
        times = times_of({one.who: one.own_s for one in row.own}, ranks)
        is_slow = [rank in (row.straggler, *row.tied) for rank in ranks] or [False, False, row.straggler is not None]
        cells = [
            Line(cell(own_s, seconds), "warning" if is_one else "")
            for own_s, is_one in zip(times, is_slow, strict=True)
        ]
        table.add(row.stage if row.is_comparable else row.stage + MARK, *cells, _slowest(report, row))
    return table


def times_of(times_s: Mapping[Rank, float], ranks: list[Rank]) -> list[float | None]:
    """Return the time of each of these ranks; without ranks those of the fastest, the median and the slowest."""
    if ranks:
        return [times_s.get(rank) for rank in ranks]
    return [min(times_s.values()), median(times_s.values()), max(times_s.values())]


def _slowest(report: Report, row: BalanceRow) -> Line:
    if not row.is_comparable:
        return Line("-", "note")
    if row.straggler is None:
        return Line(_not_slow(report, row), "note")
    name = shorten(rank_name(report, row.straggler), LONGEST_RANK)
    if row.tied:
        name = f"{name} and {row.tied[0].rank}" if len(row.tied) == 1 else f"{len(row.tied) + 1} ranks"
    how = "at times" if row.ratio is None else f"{row.ratio:.1f}x the others"
    return Line(f"{name}, {how}", "warning")


def _not_slow(report: Report, row: BalanceRow) -> str:
    """Return why no rank is slow: a stage of one rank alone, nearly equal times, or times too short to matter."""
    if row.ratio is not None:
        return "even" if row.ratio < STRAGGLER_RATIO else "negligible"
    busy = [one for one in row.own if one.own_s > 0]
    return f"only {shorten(rank_name(report, busy[0]), LONGEST_RANK)}" if len(busy) == 1 else "-"


def _comm_blocks(report: Report) -> list[Block]:
    if not report.comm:
        return []
    ranks = sorted({one.who for row in report.comm for one in row.ranks})
    rows = foremost(report.comm, lambda row: -max(one.time_s for one in row.ranks), MOST_ROWS)
    table = by_rank(ranks, partial(_comm_table, report, rows))
    lines = ["Means per step: calls of a rank, and its time in them with waiting for others."]
    if any(stage.is_comm_hidden for stage in report.stages):
        lines.append("Those of compiled regions and of DDP on a device are not among them: Python does not see these.")
    return [table, *more(len(report.comm) - len(rows), " stages"), *notes(*lines)]


def _comm_table(report: Report, rows: list[CommRow], ranks: list[Rank]) -> Table:
    heads = [rank_name(report, rank) for rank in ranks] or ("shortest", "median", "longest")
    table = Table.of("collectives in", "per step", *heads)
    for row in rows:
        times = times_of({one.who: one.time_s for one in row.ranks}, ranks)
        table.add(row.stage, _per_step(row), *(cell(time_s, seconds) for time_s in times))
    return table


def _per_step(row: CommRow) -> str:
    counts = sorted(one.count for one in row.ranks)
    names = [f"{count:.1f}".removesuffix(".0") if count >= 1 else number(count) for count in (counts[0], counts[-1])]
    return " to ".join(dict.fromkeys(names))


OWN_TIME: Final = Section(
    title="Own time by rank",
    blocks=_own_blocks,
)
COLLECTIVES: Final = Section(
    title="Collectives",
    blocks=_comm_blocks,
)
