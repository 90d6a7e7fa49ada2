"""One sentence on what holds the run back; docs/report.md lists the rules in this order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.report.format import percent, seconds, times
from otel_rl.report.model import BalanceRow, StageRow, StepTimes, Verdict, VerdictKind

STRAGGLER_SHARE: Final = 0.05
"""A slow rank is the verdict when being as fast as the others would save this share of the step time."""
IDLE_SHARE: Final = 0.2
COMM_SHARE: Final = 0.3
OTHER_SHARE: Final = 0.2
PART_SHARE: Final = 0.5
"""A stage is named as most of its group from this part of it."""

GROUPS: Final = {
    "generating rollouts": (v.SAMPLE, v.SAMPLE_PROCESS),
    "computing log-probabilities": (v.LOGPROB,),
    "computing rewards": (v.REWARD,),
    "the policy update": (v.TRAIN, v.FORWARD, v.BACKWARD, v.CLIP, v.OPTIMIZER),
    "evaluation": (v.EVALUATE,),
    "writing checkpoints": (v.CHECKPOINT,),
    "logging": (v.LOG,),
    "handing new weights to the rollout engine": (v.SYNC,),
}
"""Stages that are one thing to the reader; any other stage stands for itself."""


def verdict(steps: StepTimes, stages: Sequence[StageRow], balance: Sequence[BalanceRow]) -> Verdict:
    """Apply the rules in order; the first that holds gives the sentence."""
    top = [row for row in stages if row.inside is None]
    if not steps.averaged or not top:
        return _verdict("nothing", "No step was finished, so nothing can be said yet about what holds the run back.")
    step_s = steps.total_s / steps.averaged
    return _straggler(balance, step_s) or _waits(top) or _largest(top, step_s)


def _straggler(balance: Sequence[BalanceRow], step_s: float) -> Verdict | None:
    slow = [row for row in balance if row.straggler and (row.excess_s or 0.0) >= STRAGGLER_SHARE * step_s]
    if not slow:
        return None
    row = max(slow, key=lambda candidate: candidate.excess_s or 0.0)
    rank, ratio, excess_s = row.straggler, row.ratio or 0.0, row.excess_s or 0.0
    if rank is None:
        return None
    others = "on the other rank" if len(row.own) == 2 else "on the median of the other ranks"
    sentence = (
        f"Rank {rank.rank} holds the run back: {row.stage} takes {times(ratio)} as long there as {others}, "
        f"{seconds(excess_s)} or {percent(excess_s / step_s)} of every step."
    )
    return replace(_verdict("straggler", sentence, row.stage, excess_s / step_s), rank=rank, ratio=ratio)


def _waits(top: Sequence[StageRow]) -> Verdict | None:
    idle = sum(row.share for row in top if _kind(row.stage) == v.IDLE)
    if idle >= IDLE_SHARE:
        sentence = f"Waiting holds the run back: {percent(idle)} of the step time is {v.IDLE}."
        return _verdict("idle", sentence, v.IDLE, idle)
    comm = sum(row.share * row.comm_share for row in top)
    if comm >= COMM_SHARE:
        most = sorted(top, key=lambda row: row.share * row.comm_share, reverse=True)[:3]
        parts = [f"{percent(row.share * row.comm_share)} inside {row.stage}" for row in most if row.stage != v.COMM]
        where = f": {', '.join(parts)}" if parts else ""
        sentence = f"Collectives hold the run back: the ranks spend {percent(comm)} of the step time in them{where}."
        return _verdict("comm", sentence, v.COMM, comm)
    other = sum(row.share for row in top if row.stage == v.OTHER)
    if other >= OTHER_SHARE:
        sentence = (
            f"{percent(other)} of the step time lies under no stage; "
            'put `with otel_rl.stage("name"):` around what runs there to see what it is.'
        )
        return _verdict("other", sentence, v.OTHER, other)
    return None


def _largest(top: Sequence[StageRow], step_s: float) -> Verdict:
    groups: dict[str, list[StageRow]] = {}
    for row in top:
        if row.stage != v.OTHER:
            groups.setdefault(_group(row.stage), []).append(row)
    if not groups:
        return _verdict("nothing", "No stage was recorded, so nothing can be said about what holds the run back.")
    name, rows = max(groups.items(), key=lambda item: sum(row.share for row in item[1]))
    share = sum(row.share for row in rows)
    sentence = f"Most time goes into {name}: {percent(share)} of a step, {seconds(share * step_s)} of {seconds(step_s)}"
    return _verdict("stage", f"{sentence}{_main_part(name, rows, share)}.", rows[0].stage, share)


def _main_part(name: str, rows: Sequence[StageRow], share: float) -> str:
    """Say which stage is most of the group, unless the clock measures launches only."""
    main = max(rows, key=lambda row: row.share)
    if main.stage == name or any(row.is_host_clock for row in rows) or main.share < PART_SHARE * share:
        return ""
    return f" ({main.stage})" if len(rows) == 1 else f" (mostly {main.stage})"


def _group(stage: str) -> str:
    name = _kind(stage)
    return next((group for group, members in GROUPS.items() if name in members), stage)


def _kind(stage: str) -> str:
    """Give the first word of a stage's name; a blank one has none."""
    return next(iter(stage.split(maxsplit=1)), "")


def _verdict(kind: VerdictKind, sentence: str, stage: str | None = None, share: float | None = None) -> Verdict:
    return Verdict(kind=kind, sentence=sentence, stage=stage, share=share, rank=None, ratio=None)
