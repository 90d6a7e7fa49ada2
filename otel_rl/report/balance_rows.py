"""The per-rank table: own times of the main stages, and whom they name."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.analysis.balance import is_straggler, slowest
from otel_rl.report.average import Averaged
from otel_rl.report.model import BalanceRow, Rank, RankSeconds, StageRow

MAIN_SHARE: Final = 0.01
"""A stage has a row from this share of the step time."""
EXCESS_SHARE: Final = 0.02
"""A slow rank is named from an excess of this share of the step time."""


def balance_rows(averaged: Averaged, stages: list[StageRow]) -> list[BalanceRow]:
    """Compare the ranks of each role in each main stage, in the order of the stage table."""
    steps = Counter(record.rank for record in averaged.steady)
    rows: list[BalanceRow] = []
    for stage in stages:
        if stage.inside is None and stage.share >= MAIN_SHARE and stage.stage not in (v.OTHER, v.COMM):
            own = _own_s(averaged, stage.stage, steps)
            rows += [_row(stage, ranks, averaged) for ranks in own.values()]
    return rows


def _own_s(averaged: Averaged, stage: str, steps: Counter[Rank]) -> dict[str, dict[Rank, float]]:
    """Own time per averaged step by role and rank; a role that never has the stage has no entry."""
    own_ns: Counter[Rank] = Counter()
    for record, part in averaged.slices((stage,)):
        own_ns[record.rank] += part.own_ns
    roles = {rank.role for rank in own_ns}
    own_s: defaultdict[str, dict[Rank, float]] = defaultdict(dict)
    for rank in sorted(steps):
        if rank.role in roles:
            own_s[rank.role][rank] = own_ns[rank] / steps[rank] / 1e9
    return own_s


def _row(stage: StageRow, own_s: dict[Rank, float], averaged: Averaged) -> BalanceRow:
    is_comparable = len(own_s) > 1 and not (stage.is_comm_hidden or stage.is_host_clock)
    found = slowest(own_s) if is_comparable else None
    step_s = averaged.time_ns / len(averaged.steady) / 1e9
    return BalanceRow(
        stage=stage.stage,
        own=[RankSeconds(rank.role, rank.rank, value) for rank, value in own_s.items()],
        is_comparable=is_comparable,
        straggler=found.rank if found and is_straggler(found, EXCESS_SHARE * step_s) else None,
        ratio=found.own_s / found.others_s if found and found.others_s > 0 else None,
        excess_s=found.excess_s if found else None,
    )
