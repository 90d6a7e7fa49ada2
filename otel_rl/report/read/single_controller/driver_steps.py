"""What the steps of a driver show: a slow process, a stage that grows, agent loops that start in the first step."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median
from typing import TYPE_CHECKING, Final

from otel_rl import vocabulary as v
from otel_rl.analysis.series.rising import rise
from otel_rl.report.data.time_rows import FirstSubmit, GrowingStage, SlowProcess

if TYPE_CHECKING:
    from otel_rl.report.fold.folded_spans import StepRecord
    from otel_rl.report.source import Source

STARTING_NS: Final = 2_000_000_000
STARTING_RATIO: Final = 5.0


def slow_process(source: Source) -> SlowProcess | None:
    """Compare the processes of a role that are no ranks: agent loops, servers, reward workers."""
    slow = source.found.roles.slowest({rank for _, rank in source.found.guests}) if source.found.led else None
    steps, step_s = len(source.averaged.keys), source.averaged.mean_ns / 1e9
    if slow is None or not steps or not step_s:
        return None
    cost_s = min(step_s, slow.cost_s / steps)
    return SlowProcess(
        rank=slow.rank,
        peers=[rank for rank in source.ranks if rank.role == slow.rank.role and rank != slow.rank],
        stage=slow.stage,
        own_s=slow.own_s,
        others_s=slow.others_s,
        cost_s=cost_s,
        share=cost_s / step_s,
    )


def growing_stage(source: Source) -> GrowingStage | None:
    """Return the stage of a driver that takes longer from step to step, in the last attempt.

    Without a driver only the handing over of weights is judged: other stages of ranks follow the responses' lengths.
    """
    steps = _together(source)
    stages = {path[0] for path in source.averaged.stages if len(path) == 1}
    stages = {stage for stage in stages if (not stage.startswith(v.IDLE) if source.found.led else _is_sync(stage))}
    rises = {
        stage: rise([fmean(_busy_ns(record, stage) for record in records) / 1e9 for records in steps])
        for stage in stages
    }
    known = {stage: one for stage, one in rises.items() if one is not None}
    stage = max(known, key=lambda name: known[name].last - known[name].first, default="")
    if not stage:
        return None
    first_s, last_s = known[stage].first, known[stage].last
    mean_s = source.averaged.mean_ns / 1e9
    return GrowingStage(stage, len(steps), first_s, last_s, (last_s - first_s) / mean_s if mean_s else 0.0)


def first_submit(source: Source) -> FirstSubmit | None:
    """Return the first step of the last attempt if its prompts took long: agent loops start while they get them."""
    steps = _of_last_attempt(source, source.averaged.finished)
    times_ns = [_busy_ns(record, v.SAMPLE_SUBMIT) for record in steps]
    if len(times_ns) < 2 or times_ns[0] < max(STARTING_NS, STARTING_RATIO * median(times_ns[1:])):
        return None
    whole_ns = steps[0].step.time_ns
    return FirstSubmit(steps[0].step.iteration, times_ns[0] / 1e9, times_ns[0] / whole_ns if whole_ns else 0.0)


def _is_sync(stage: str) -> bool:
    return stage.split(maxsplit=1)[0] == v.SYNC


def _together(source: Source) -> list[list[StepRecord]]:
    """Return the steady steps of the last attempt, each with the records of its ranks, or of the driver."""
    last = source.attempts[-1].id if source.attempts else ""
    return [records for (attempt, *_), records in source.averaged.by_step.items() if attempt == last]


def _of_last_attempt(source: Source, records: Sequence[StepRecord]) -> list[StepRecord]:
    last = source.attempts[-1].id if source.attempts else ""
    return [record for record in records if record.attempt == last] if source.found.led else []


def _busy_ns(record: StepRecord, stage: str) -> int:
    return record.stages.busy_of((stage,))
