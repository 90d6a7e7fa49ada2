"""The per-rank table: own times of the main stages, and whom they name."""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.analysis.balance import EXCESS_SHARE, is_straggler, slowest
from otel_rl.report.average import Averaged
from otel_rl.report.model import BalanceRow, Rank, RankSeconds, StageRow

MAIN_SHARE: Final = 0.01
"""A stage has a row from this share of the step time."""


def balance_rows(averaged: Averaged, stages: list[StageRow]) -> list[BalanceRow]:
    """Compare the ranks of each role in each main stage, in the order of the stage table."""
    ranks = sorted({record.rank for record in averaged.steady})
    rows: list[BalanceRow] = []
    for stage in stages:
        if stage.inside is None and stage.share >= MAIN_SHARE and stage.stage not in (v.OTHER, v.COMM):
            found = _own_ns(averaged, stage.stage)
            for role in sorted({rank.role for rank in found}):
                rows.append(_row(stage, {rank: found.get(rank, []) for rank in ranks if rank.role == role}, averaged))
    return rows


def _own_ns(averaged: Averaged, stage: str) -> dict[Rank, list[int]]:
    """List a stage's own times by rank, one for each step that has it."""
    found: defaultdict[Rank, list[int]] = defaultdict(list)
    for record, part in averaged.slices((stage,)):
        found[record.rank].append(part.own_ns)
    return found


def _row(stage: StageRow, own_ns: dict[Rank, list[int]], averaged: Averaged) -> BalanceRow:
    own_s = {rank: median(times) / 1e9 if times else 0.0 for rank, times in own_ns.items()}
    is_comparable = len(own_s) > 1 and not (stage.is_comm_hidden or stage.is_host_clock)
    found = slowest(own_s) if is_comparable else None
    excess_s = found.excess_s * _frequency(averaged, found.rank, own_ns) if found else 0.0
    is_slow = found and is_straggler(found) and excess_s >= EXCESS_SHARE * averaged.median_ns / 1e9
    return BalanceRow(
        stage=stage.stage,
        own=[RankSeconds(rank.role, rank.rank, value) for rank, value in own_s.items()],
        is_comparable=is_comparable,
        straggler=found.rank if found and is_slow else None,
        tied=list(found.tied) if found and is_slow else [],
        ratio=found.own_s / found.others_s if found and found.others_s > 0 else None,
        excess_s=excess_s if found else None,
    )


def _frequency(averaged: Averaged, rank: Rank, own_ns: dict[Rank, list[int]]) -> float:
    """Say in which part of a rank's steps it has the stage."""
    return len(own_ns[rank]) / sum(record.rank == rank for record in averaged.steady)
