"""Ranks for which others wait, and slow collectives: rules of TIME."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.analysis.stragglers import COMM_SHARE, STRAGGLER_RATIO, TIE_SHARE
from otel_rl.report.data.finding import Value
from otel_rl.report.data.time_rows import TimeRows
from otel_rl.report.data.time_use import SlowCommunication, SlowRankRow
from otel_rl.report.findings.rule import Found, rule, table, whole

AVERAGED: Final = "the averaged steps"
PER_STAGE: Final = ("stages of every rank",)
SLOW_SHARE: Final = 0.05
"""A slow rank costs at least this share of the mean step."""
ALIKE_SHARE: Final = 0.5
"""Ranks that are slow in the same stages are named together from this part of the largest cost on."""
CALL_S: Final = 0.01
"""Collectives are slow from this time on each: many short ones are a matter of short steps."""
AWAITED_SHARE: Final = 0.2
UNEVEN_SHARE: Final = 0.3
COSTS: Final = f"and that costs at least {whole(SLOW_SHARE)} of the mean step"
RANKS: Final = "{role:Text}{ranks:|s} {ranks}[ of pipeline stage {pipeline}] {ranks:is|are}"
COST: Final = (
    "(own time {own_s:seconds} against {others_s:seconds}), which costs {cost_s:seconds} of {step_s:seconds} per step"
    "{is_led: without waits for the driver|} ({share:percent})."
)
OTHERS: Final = (
    "[ {other_role:Text}{other_ranks:|s} {other_ranks} {other_ranks:costs|cost} as much in {other_stage:stage}.]"
)
SLOW_RANK: Final = ("starved_rank", "slow_rank", "slow_stage")
"""While one rank is slow, the others are in collectives, and wait."""


@rule(
    "warning",
    reads=(v.CPU_TIME, *PER_STAGE),
    condition=f"a rank is slow in most of its stages by time and gets at most 1 / {STRAGGLER_RATIO} of the core "
    f"that its peers get, {COSTS}",
    window=AVERAGED,
    sentence=f"{RANKS} slower in almost everything {COST} It got {{core_share:percent}} of a core while it worked."
    f"{OTHERS}",
    advice="See what else runs on the cores of this rank: other programs, or other threads of its own.",
)
def starved_rank(rows: TimeRows) -> Found | None:
    return _slow(rows, lambda row: row.is_everywhere and row.is_starved)


@rule(
    "warning",
    reads=PER_STAGE,
    condition=f"a rank is slow in most of its stages by time, {COSTS}",
    window=AVERAGED,
    sentence=f"{RANKS} slower in almost everything {COST}{OTHERS}",
    advice="Compare its machine and its share of the work with the other ranks'.",
)
def slow_rank(rows: TimeRows) -> Found | None:
    return _slow(rows, lambda row: row.is_everywhere and not row.is_starved)


@rule(
    "warning",
    reads=PER_STAGE,
    condition=f"a rank is slow in some stages, {COSTS}",
    window=AVERAGED,
    sentence=f"{RANKS} slower in {{stages:stage}}[ in {{slow_steps:count}} of {{steps:plural step}}] {COST}{OTHERS}",
    advice="See what this rank does differently there: its data, its files, its hardware.",
)
def slow_stage(rows: TimeRows) -> Found | None:
    return _slow(rows, lambda row: not row.is_everywhere)


def _slow(rows: TimeRows, applies: Callable[[SlowRankRow], bool]) -> Found | None:
    """Name the costliest rank, with those of its peers that are slow in the same way."""
    slow = rows.efficiency.slow_ranks
    if not slow or slow[0].share < SLOW_SHARE or not applies(slow[0]):
        return None
    worst = slow[0]
    alike = [row for row in slow if _is_alike(row, worst)]
    others = [row for row in slow if row not in alike and row.cost_s > (1 - TIE_SHARE) * worst.cost_s]
    values: dict[str, Value | None] = {
        "role": _role(rows, worst.role),
        "ranks": [row.rank for row in alike],
        "pipeline": _pipeline(rows, worst.pipeline),
        "stage": worst.stages[0],
        "stages": worst.stages,
        "own_s": worst.own_s,
        "others_s": worst.others_s,
        "cost_s": worst.cost_s,
        "step_s": worst.cost_s / worst.share,  # without collectives each rank has its own mean step
        "share": worst.share,
        "core_share": worst.core_share,
        "is_led": bool(rows.roles),
    }
    values |= _in_one_stage(rows, worst) | _others(rows, others)
    return Found(values, worst.share, rank=worst.who, stage=None if worst.is_everywhere else worst.stages[0])


def _is_alike(row: SlowRankRow, worst: SlowRankRow) -> bool:
    if (row.role, row.pipeline, row.is_everywhere) != (worst.role, worst.pipeline, worst.is_everywhere):
        return False
    return row.is_everywhere or (row.stages == worst.stages and row.cost_s >= ALIKE_SHARE * worst.cost_s)


def _in_one_stage(rows: TimeRows, worst: SlowRankRow) -> dict[str, Value | None]:
    """Return the times of a rank in the steps that have the only stage in which it is slow."""
    values: dict[str, Value | None] = {"slow_steps": None, "steps": None}
    if worst.is_everywhere or len(worst.stages) > 1:
        return values
    row = next(row for row in rows.efficiency.stragglers if row.who == worst.who)
    values |= {"own_s": row.own_s, "others_s": row.own_s / row.ratio if row.ratio else 0.0}
    return values | ({"slow_steps": row.slow_steps, "steps": row.steps} if row.is_at_times else {})


def _others(rows: TimeRows, others: Sequence[SlowRankRow]) -> dict[str, Value | None]:
    """Return the ranks that cost as much elsewhere: those that are slow like the first of them."""
    alike = [row for row in others if _is_alike(row, others[0])]
    if not alike:
        return {"other_role": None}
    return {
        "other_role": _role(rows, alike[0].role),
        "other_ranks": [row.rank for row in alike],
        "other_stage": "everything" if alike[0].is_everywhere else alike[0].stages[0],
    }


def _role(rows: TimeRows, role: str) -> str:
    return role if rows.roles or len({one.role for one in rows.efficiency.ranks}) > 1 else "rank"


def _pipeline(rows: TimeRows, pipeline: int | None) -> int | None:
    return pipeline if len({row.pipeline for row in rows.efficiency.ranks}) > 1 else None


@rule(
    "warning",
    reads=(v.COMM_COUNT, v.COMM_TIME),
    condition=f"the collectives of a stage take at least {whole(COMM_SHARE)} of the step on every rank without "
    f"waiting, and at least {CALL_S * 1000:.0f} ms each; no rank is slow",
    window=AVERAGED,
    sentence="Communication holds the run back: collectives take {time_s:seconds} {stages:inside} per step on every "
    "rank[ of pipeline stage {pipeline}] ({share:percent}), {call_s:seconds} each.",
    advice="Look at the network between the ranks, and at the size of what they exchange.",
    silenced_by=SLOW_RANK,
)
def slow_communication(rows: TimeRows) -> Found | None:
    """Find the collectives of the slowest pipeline stage."""
    by_pipeline: defaultdict[int | None, list[SlowCommunication]] = defaultdict(list)
    for row in rows.efficiency.slow_communication:
        by_pipeline[row.pipeline].append(row)
    slow = max(by_pipeline.values(), key=lambda found: sum(row.share for row in found), default=[])
    time_s = sum(row.transfer_s for row in slow)
    call_s = time_s / max(1.0, sum(row.count for row in slow))  # a hidden one is not counted
    if call_s < CALL_S:
        return None
    share = sum(row.share for row in slow)
    values: dict[str, Value | None] = {"stage": slow[0].stage, "stages": [row.stage for row in slow], "time_s": time_s}
    return Found(
        values | {"share": share, "call_s": call_s, "pipeline": _pipeline(rows, slow[0].pipeline)},
        weight=share,
        stage=slow[0].stage,
    )


@rule(
    "warning",
    reads=(v.COMM_TIME, *PER_STAGE),
    condition=f"the others wait at least {whole(AWAITED_SHARE)} of the step for the same ranks, which are not "
    "slow in any stage that all have",
    window=AVERAGED,
    sentence="The other ranks wait {is_exact:|at least }{wait_s:seconds} per step ({share:percent}) for "
    "{role}{ranks:|s} {ranks}[, which {ranks:spends|spend} {more_s:seconds} more than they do {stage:inside}].",
    advice="Give this work to all ranks, or do it in the background.",
    silenced_by=SLOW_RANK,
)
def awaited_rank(rows: TimeRows, *, limit: float = AWAITED_SHARE) -> Found | None:
    ranks = rows.awaited.ranks
    longest = max(rows.efficiency.ranks, key=lambda row: row.wait_s, default=None)
    if not ranks or longest is None or longest.wait_s < limit * longest.step_s or not longest.step_s:
        return None
    values: dict[str, Value | None] = {
        "is_exact": all(row.is_wait_exact for row in rows.efficiency.ranks),
        "wait_s": longest.wait_s,
        "share": longest.wait_s / longest.step_s,
        "role": _role(rows, ranks[0].role),
        "ranks": [one.rank for one in ranks],
        "more_s": rows.awaited.more_s,
        "stage": rows.awaited.stage,
    }
    return Found(values, longest.wait_s / longest.step_s, rank=ranks[0], stage=rows.awaited.stage)


@rule(
    "warning",
    reads=(v.COMM_TIME,),
    condition=f"the ranks wait at least {whole(UNEVEN_SHARE)} of the step time for each other, and not for the "
    "same again and again",
    window=AVERAGED,
    sentence="The ranks wait {is_exact:|at least }{share:percent} of the step time for the slowest of them"
    "{is_spread:, now one rank, now another|}.",
    advice="Give the ranks equal work: batches of equal length, or one queue for all.",
    silenced_by=SLOW_RANK,
)
def uneven_ranks(rows: TimeRows, *, limit: float = UNEVEN_SHARE) -> Found | None:
    share = sum(row.share for row in rows.efficiency.bubbles if row.kind == "skew")
    if rows.awaited.ranks or share < limit:
        return None
    is_exact = all(row.is_wait_exact for row in rows.efficiency.ranks)
    return Found({"is_exact": is_exact, "share": share, "is_spread": rows.awaited.is_spread}, share)


SLOW_RANKS: Final = table(
    starved_rank,
    slow_rank,
    slow_stage,
    slow_communication,
    awaited_rank,
    uneven_ranks,
)
