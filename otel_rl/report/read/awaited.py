"""For whom the ranks wait in their mean step, where no rank is slow in a stage of all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from otel_rl import vocabulary as v
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.time_rows import Awaited
from otel_rl.report.data.time_use import RankTime
from otel_rl.report.read.average import Averaged

AWAITED_SHARE: Final = 0.5
"""A rank is waited for if it makes up this part of the longest wait; a stage explains it from this part of that."""


def awaited(averaged: Averaged, times: Iterable[RankTime]) -> Awaited:
    """Compare the ranks of the role in which one waits longest, across pipeline stages, as collectives do."""
    roles: defaultdict[str, list[RankTime]] = defaultdict(list)
    for row in times:
        roles[row.role].append(row)
    rows = max(roles.values(), key=_longest_s, default=[])
    longest_s = _longest_s(rows)
    if not longest_s:
        return Awaited()
    apart_s = {row.who: row.step_s - row.wait_s - row.transfer_s for row in rows}
    limit_s = min(apart_s.values()) + AWAITED_SHARE * longest_s
    ranks = sorted((rank for rank in apart_s if apart_s[rank] >= limit_s), key=lambda rank: -apart_s[rank])
    others = [rank for rank in apart_s if apart_s[rank] < limit_s]
    if not ranks:
        return Awaited(is_spread=min(row.wait_s for row in rows) >= AWAITED_SHARE * longest_s)
    more_s = {stage: _mean(own_s, ranks) - _mean(own_s, others) for stage, own_s in _own_s(averaged).items()}
    stage = max(more_s, key=lambda name: more_s[name])
    is_main = more_s[stage] >= AWAITED_SHARE * (_mean(apart_s, ranks) - _mean(apart_s, others))
    return Awaited(ranks, stage, more_s[stage]) if is_main else Awaited(ranks)


def _longest_s(rows: Sequence[RankTime]) -> float:
    """Return the longest wait, or an upper bound of it."""
    return max((row.wait_s + (0.0 if row.is_wait_exact else row.transfer_s) for row in rows), default=0.0)


def _own_s(averaged: Averaged) -> dict[str, dict[Rank, float]]:
    steps = dict(zip(averaged.ranks, np.bincount(averaged.rank_of).tolist(), strict=True))
    stages = {v.OTHER: averaged.other} | {path[0]: part for path, part in averaged.stages.items() if len(path) == 1}
    return {
        stage: {
            rank: time_ns / steps[rank] / 1e9 for rank, time_ns in averaged.sums_by_rank(part.step, part.own_ns).items()
        }
        for stage, part in stages.items()
        if stage != v.COMM and not (part.is_hidden or part.is_host_clock)
    }


def _mean(times_s: dict[Rank, float], ranks: Sequence[Rank]) -> float:
    return sum(times_s.get(rank, 0.0) for rank in ranks) / len(ranks)
