"""Own times and collectives of the stages by rank, and who is slow in them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.analysis.stages import Comm
from otel_rl.analysis.stragglers import STRAGGLER_RATIO, slowest
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import BalanceRow, CommRow, RankComm, RankSeconds, Report, StageRow
from otel_rl.report.data.time_use import StragglerRow
from otel_rl.report.fold.folded_spans import StepRecord
from otel_rl.report.read.average import Averaged
from otel_rl.report.read.single_controller.guest_steps import CONTROLLER
from otel_rl.report.section import Block, Column, Line, Section, Table, by_rank, cell, foremost, more, notes, rank_name
from otel_rl.runs.format import number, seconds, shorten

MAIN_SHARE: Final = 0.01
NO_WORK: Final = (v.OTHER, v.COMM, f"{v.IDLE} {CONTROLLER}")
MOST_ROWS: Final = 40
LONGEST_RANK: Final = 16
MARK: Final = " *"


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
        if stage.inside is None and is_main and (stage.stage not in NO_WORK or stage.stage in slow):
            found = _own_ns(averaged, stage.stage)
            for of in sorted({peers[rank] for rank in found}):
                own = {rank: found.get(rank, []) for rank in sorted(peers) if peers[rank] == of}
                named = [row for row in stragglers if row.stage == stage.stage and row.who in own]
                rows.append(_balance_row(stage, own, averaged, named))
    return rows


def _own_ns(averaged: Averaged, stage: str) -> dict[Rank, list[int]]:
    found: defaultdict[Rank, list[int]] = defaultdict(list)
    for record, part in averaged.other() if stage == v.OTHER else averaged.steps_with((stage,)):
        found[record.rank].append(part.own_ns)
    return found


def _balance_row(
    stage: StageRow, own_ns: dict[Rank, list[int]], averaged: Averaged, named: Sequence[StragglerRow]
) -> BalanceRow:
    own_s = {rank: median(times) / 1e9 if times else 0.0 for rank, times in own_ns.items()}
    is_comparable = len(own_s) > 1 and not (stage.is_comm_hidden or stage.is_host_clock)
    found = slowest(own_s) if is_comparable else None
    slow = [row.who for row in named]
    ratio = found.own_s / found.others_s if found and found.others_s > 0 else None
    excess_s = None
    if found:
        frequency = len(own_ns[found.rank]) / sum(record.rank == found.rank for record in averaged.steady)
        excess_s = found.excess_s * frequency
    return BalanceRow(
        stage=stage.stage,
        own=[RankSeconds(role=rank.role, rank=rank.rank, own_s=value) for rank, value in own_s.items()],
        is_comparable=is_comparable,
        straggler=slow[0] if slow else None,
        tied=slow[1:],
        ratio=(None if named[0].is_at_times else named[0].ratio) if named else ratio,
        excess_s=named[0].cost_s if named else excess_s,
    )


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
    data={"balance": lambda source: balance_rows(source.of_ranks, source.rank_stages, source.efficiency.stragglers)},
    blocks=_own_blocks,
)
COLLECTIVES: Final = Section(
    title="Collectives",
    data={"comm": lambda source: comm_rows(source.of_ranks, source.rank_stages)},
    blocks=_comm_blocks,
)
