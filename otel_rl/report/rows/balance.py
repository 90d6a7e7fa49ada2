"""Own time and collectives of each rank by stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_rl import vocabulary as v
from otel_rl.analysis.stragglers import slowest
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import BalanceRow, CommRow, RankComm, RankSeconds, StageRow
from otel_rl.report.data.time_use import StragglerRow
from otel_rl.report.read.average import Averaged
from otel_rl.report.read.single_controller.guest_steps import CONTROLLER

if TYPE_CHECKING:
    from otel_rl.tables.forest import Ints

MAIN_SHARE: Final = 0.01
NO_WORK: Final = (v.OTHER, v.COMM, f"{v.IDLE} {CONTROLLER}")


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
    part = averaged.other if stage == v.OTHER else averaged.stages.get((stage,))
    if part is None:
        return {}
    of = averaged.rank_of[part.step]
    return {rank: part.own_ns[of == number].tolist() for rank, number in averaged.ranks.items() if number in of}


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


def comm_rows(averaged: Averaged, stages: list[StageRow]) -> list[CommRow]:
    """Make one row per stage that has collectives, in the order of the stage table, those under no stage at the end."""
    steps = Counter(record.rank for record in averaged.steady)
    counts: Counter[tuple[str, Rank]] = Counter()
    times_ns: Counter[tuple[str, Rank]] = Counter()
    for stage, step, count, time_ns in _collectives(averaged):
        has_any = count > 0
        for sums, values in ((counts, count), (times_ns, time_ns)):
            by_rank = averaged.sums_by_rank(step[has_any], values[has_any])
            sums.update({(stage, rank): number for rank, number in by_rank.items()})
    order = [row.stage for row in stages if row.inside is None and row.stage != v.COMM] + [v.COMM]
    return [
        CommRow(stage=stage, ranks=[_rank(rank, counts[stage, rank], times_ns[stage, rank], steps) for rank in ranks])
        for stage in order
        if (ranks := sorted(rank for rank in steps if (stage, rank) in counts))
    ]


def _collectives(averaged: Averaged) -> Iterator[tuple[str, Ints, Ints, Ints]]:
    """Return stages, and of each the steps, and the number and time of its collectives in them."""
    for path, part in averaged.stages.items():
        if len(path) == 1 and path[0] != v.COMM:
            yield path[0], part.step, part.comm_count, part.comm_ns
    direct = [(record.direct_comm.count, record.direct_comm.time_ns) for record in averaged.steady]
    count, time_ns = np.array(direct, np.int64).reshape(-1, 2).T
    yield v.COMM, np.arange(len(direct)), count, time_ns


def _rank(rank: Rank, count: int, time_ns: int, steps: Counter[Rank]) -> RankComm:
    return RankComm(role=rank.role, rank=rank.rank, count=count / steps[rank], time_s=time_ns / steps[rank] / 1e9)
