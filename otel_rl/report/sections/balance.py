"""The per-rank table: own times of the main stages, and whom they name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.analysis.stragglers import slowest
from otel_rl.report.data.efficiency import StragglerRow
from otel_rl.report.data.report import BalanceRow, Rank, RankSeconds, StageRow
from otel_rl.report.read.average import Averaged
from otel_rl.report.sections.stages import other_ns

MAIN_SHARE: Final = 0.01
"""A stage has a row from this share of the step time."""


def balance_rows(
    averaged: Averaged, stages: Sequence[StageRow], stragglers: Sequence[StragglerRow]
) -> list[BalanceRow]:
    """Compare the ranks of each role and pipeline stage in each main stage, in the order of the stage table.

    What is under no stage has a row only where a rank is slow there.

    Args:
        averaged: the steps.
        stages: of the same steps.
        stragglers: who is slow in which stage; such a stage has a row however short it is.
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
                named = [row for row in stragglers if row.stage == stage.stage and Rank(row.role, row.rank) in own]
                rows.append(_row(stage, own, averaged, named))
    return rows


def _own_ns(averaged: Averaged, stage: str) -> dict[Rank, list[int]]:
    """List a stage's own times by rank, one for each step that has it."""
    found: defaultdict[Rank, list[int]] = defaultdict(list)
    if stage == v.OTHER:
        for record in averaged.steady:
            found[record.rank].append(other_ns(record))
    for record, part in averaged.slices((stage,)):
        found[record.rank].append(part.own_ns)
    return found


def _row(
    stage: StageRow, own_ns: dict[Rank, list[int]], averaged: Averaged, named: Sequence[StragglerRow]
) -> BalanceRow:
    own_s = {rank: median(times) / 1e9 if times else 0.0 for rank, times in own_ns.items()}
    is_comparable = len(own_s) > 1 and not (stage.is_comm_hidden or stage.is_host_clock)
    found = slowest(own_s) if is_comparable else None
    slow = [Rank(row.role, row.rank) for row in named]
    ratio = found.own_s / found.others_s if found and found.others_s > 0 else None
    excess_s = found.excess_s * _frequency(averaged, found.rank, own_ns) if found else None
    return BalanceRow(
        stage=stage.stage,
        own=[RankSeconds(rank.role, rank.rank, value) for rank, value in own_s.items()],
        is_comparable=is_comparable,
        straggler=slow[0] if slow else None,
        tied=slow[1:],
        ratio=(None if named[0].is_at_times else named[0].ratio) if named else ratio,
        excess_s=named[0].cost_s if named else excess_s,
    )


def _frequency(averaged: Averaged, rank: Rank, own_ns: dict[Rank, list[int]]) -> float:
    """Say in which part of a rank's steps it has the stage."""
    return len(own_ns[rank]) / sum(record.rank == rank for record in averaged.steady)
