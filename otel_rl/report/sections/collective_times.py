"""Collectives: how many, and how long, by rank and stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from statistics import median
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.analysis.stages import Comm
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import CommRow, RankComm, Report, StageRow
from otel_rl.report.format import number, seconds
from otel_rl.report.read.average import Averaged
from otel_rl.report.read.collect import StepRecord
from otel_rl.report.section import Block, Section, Table, by_rank, foremost, more, notes, rank_name

MOST_ROWS: Final = 40
SHORT_HEADS: Final = ("shortest", "median", "longest")


def comm_rows(averaged: Averaged, stages: list[StageRow]) -> list[CommRow]:
    """Make one row per stage that has collectives, in the order of the stage table, those under no stage at the end."""
    steps = Counter(record.rank for record in averaged.steady)
    counts: Counter[tuple[str, Rank]] = Counter()
    times_ns: Counter[tuple[str, Rank]] = Counter()
    for record in averaged.steady:
        for stage, comm in _comm(record):
            counts[stage, record.rank] += comm.count
            times_ns[stage, record.rank] += comm.time_ns
    order = [row.stage for row in stages if row.inside is None and row.stage != v.COMM] + [v.COMM]
    return [
        CommRow(stage=stage, ranks=[_rank(rank, counts[stage, rank], times_ns[stage, rank], steps) for rank in ranks])
        for stage in order
        if (ranks := sorted(rank for rank in steps if (stage, rank) in counts))
    ]


def _comm(record: StepRecord) -> Iterator[tuple[str, Comm]]:
    found = [(path[0], comm) for path, comm in record.stages.collectives() if len(path) == 1 and path[0] != v.COMM]
    for stage, comm in [*found, (v.COMM, record.direct_comm)]:
        if comm.count:
            yield stage, comm


def _rank(rank: Rank, count: int, time_ns: int, steps: Counter[Rank]) -> RankComm:
    return RankComm(role=rank.role, rank=rank.rank, count=count / steps[rank], time_s=time_ns / steps[rank] / 1e9)


def _blocks(report: Report) -> list[Block]:
    if not report.comm:
        return []
    ranks = sorted({one.who for row in report.comm for one in row.ranks})
    rows = foremost(report.comm, lambda row: -max(one.time_s for one in row.ranks), MOST_ROWS)
    table = by_rank(ranks, partial(_table, report, rows))
    lines = ["Means per step: calls of a rank, and its time in them with waiting for others."]
    if any(stage.is_comm_hidden for stage in report.stages):
        lines.append("Those of compiled regions and of DDP on a device are not among them: Python does not see these.")
    return [table, *more(len(report.comm) - len(rows), " stages"), *notes(*lines)]


def _table(report: Report, rows: list[CommRow], ranks: list[Rank]) -> Table:
    table = Table.of("collectives in", "per step", *([rank_name(report, rank) for rank in ranks] or SHORT_HEADS))
    for row in rows:
        times = {one.who: one.time_s for one in row.ranks}
        short = (min(times.values()), median(times.values()), max(times.values()))
        shown = [times.get(rank) for rank in ranks] if ranks else short
        table.add(row.stage, _per_step(row), *("-" if time_s is None else seconds(time_s) for time_s in shown))
    return table


def _per_step(row: CommRow) -> str:
    counts = sorted(one.count for one in row.ranks)
    names = [f"{count:.1f}".removesuffix(".0") if count >= 1 else number(count) for count in (counts[0], counts[-1])]
    return " to ".join(dict.fromkeys(names))


COLLECTIVES: Final = Section(
    title="Collectives", data={"comm": lambda source: comm_rows(source.averaged, source.stages)}, blocks=_blocks
)
