"""Own times of the main stages by rank, and who is slow in them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.analysis.stragglers import STRAGGLER_RATIO, slowest
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import BalanceRow, RankSeconds, Report, StageRow
from otel_rl.report.data.time_use import StragglerRow
from otel_rl.report.format import seconds, shorten
from otel_rl.report.read.average import Averaged
from otel_rl.report.section import Block, Column, Line, Section, Table, by_rank, foremost, more, notes, rank_name

MAIN_SHARE: Final = 0.01
MOST_ROWS: Final = 40
LONGEST_RANK: Final = 16
MARK: Final = " *"
SHORT_HEADS: Final = ("fastest", "median", "longest")


def balance_rows(
    averaged: Averaged, stages: Sequence[StageRow], stragglers: Sequence[StragglerRow]
) -> list[BalanceRow]:
    """Compare the ranks of each role and pipeline stage in each main stage, in the order of the stage table.

    The stage of a straggler has a row however short it is; what is under no stage has one only then.
    """
    peers = {record.rank: (record.rank.role, record.pipeline) for record in averaged.steady}
    slow = {row.stage for row in stragglers}
    rows: list[BalanceRow] = []
    for stage in stages:
        is_main = stage.share >= MAIN_SHARE or stage.stage in slow
        if stage.inside is None and is_main and (stage.stage not in (v.OTHER, v.COMM) or stage.stage in slow):
            found = _own_ns(averaged, stage.stage)
            for of in sorted({peers[rank] for rank in found}):
                own = {rank: found.get(rank, []) for rank in sorted(peers) if peers[rank] == of}
                named = [row for row in stragglers if row.stage == stage.stage and row.who in own]
                rows.append(_row(stage, own, averaged, named))
    return rows


def _own_ns(averaged: Averaged, stage: str) -> dict[Rank, list[int]]:
    found: defaultdict[Rank, list[int]] = defaultdict(list)
    for record, part in averaged.other() if stage == v.OTHER else averaged.steps_with((stage,)):
        found[record.rank].append(part.own_ns)
    return found


def _row(
    stage: StageRow, own_ns: dict[Rank, list[int]], averaged: Averaged, named: Sequence[StragglerRow]
) -> BalanceRow:
    own_s = {rank: median(times) / 1e9 if times else 0.0 for rank, times in own_ns.items()}
    is_comparable = len(own_s) > 1 and not (stage.is_comm_hidden or stage.is_host_clock)
    found = slowest(own_s) if is_comparable else None
    slow = [row.who for row in named]
    ratio = found.own_s / found.others_s if found and found.others_s > 0 else None
    excess_s = found.excess_s * _frequency(averaged, found.rank, own_ns) if found else None
    return BalanceRow(
        stage=stage.stage,
        own=[RankSeconds(role=rank.role, rank=rank.rank, own_s=value) for rank, value in own_s.items()],
        is_comparable=is_comparable,
        straggler=slow[0] if slow else None,
        tied=slow[1:],
        ratio=(None if named[0].is_at_times else named[0].ratio) if named else ratio,
        excess_s=named[0].cost_s if named else excess_s,
    )


def _frequency(averaged: Averaged, rank: Rank, own_ns: dict[Rank, list[int]]) -> float:
    return len(own_ns[rank]) / sum(record.rank == rank for record in averaged.steady)


def _blocks(report: Report) -> list[Block]:
    rows = [row for row in report.balance if len(row.own) > 1]
    if not rows:
        return []
    ranks = sorted({one.who for row in rows for one in row.own})
    shown = foremost(rows, lambda row: row.straggler is None, MOST_ROWS)
    table = by_rank(ranks, partial(_table, report, shown))
    marked = {row.stage for row in rows if not row.is_comparable}
    stages = [stage for stage in report.stages if stage.inside is None and stage.stage in marked]
    lines = ["Own time: median of the steps with the stage, without the collectives in it."]
    if any(stage.is_comm_hidden for stage in stages):
        lines.append("* Collectives hide inside and cannot be separated: no rank is named.")
    if any(stage.is_host_clock for stage in stages):
        lines.append("* Timed on the host: launches of device work, not the work: no rank is named.")
    return [table, *more(len(rows) - len(shown), " stages"), *notes(*lines)]


def _table(report: Report, rows: list[BalanceRow], ranks: list[Rank]) -> Table:
    heads = map(Column, [rank_name(report, rank) for rank in ranks] or SHORT_HEADS)
    table = Table([Column("own time", "name"), *heads, Column("slowest", "fact")])
    for row in rows:
        if ranks:
            own = {one.who: one.own_s for one in row.own}
            cells = [_cell(own.get(rank), rank in (row.straggler, *row.tied)) for rank in ranks]
        else:
            times = sorted(one.own_s for one in row.own)
            cells = [_cell(times[0]), _cell(median(times)), _cell(times[-1], row.straggler is not None)]
        table.add(row.stage if row.is_comparable else row.stage + MARK, *cells, _slowest(report, row))
    return table


def _cell(own_s: float | None, is_slow: bool = False) -> Line:
    return Line("-" if own_s is None else seconds(own_s), "warning" if is_slow else "")


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


OWN_TIME: Final = Section(
    title="Own time by rank",
    data={"balance": lambda source: balance_rows(source.averaged, source.stages, source.efficiency.stragglers)},
    blocks=_blocks,
)
