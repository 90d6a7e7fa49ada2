"""The table of collectives: how many, and how long, by rank and stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from otel_rl import vocabulary as v
from otel_rl.analysis.stages import Comm
from otel_rl.report.data.report import CommRow, Rank, RankComm, StageRow
from otel_rl.report.read.average import Averaged
from otel_rl.report.read.collect import StepRecord


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
    """Give the collectives of a step by the outermost stage around them."""
    found = [(path[0], comm) for path, comm in record.slices.collectives() if len(path) == 1 and path[0] != v.COMM]
    for stage, comm in [*found, (v.COMM, record.direct_comm)]:
        if comm.count:
            yield stage, comm


def _rank(rank: Rank, count: int, time_ns: int, steps: Counter[Rank]) -> RankComm:
    return RankComm(role=rank.role, rank=rank.rank, count=count / steps[rank], time_s=time_ns / steps[rank] / 1e9)
