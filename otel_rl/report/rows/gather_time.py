"""The rows that the rules of TIME read."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import TYPE_CHECKING, Final

from otel_rl import vocabulary as v
from otel_rl.analysis.series.level_shift import level_shift
from otel_rl.report.data.ranks import StepKey
from otel_rl.report.data.report import StageRow
from otel_rl.report.data.time_rows import SampleBuffer, SlowerSteps, StageShare, TimeRows
from otel_rl.report.fold.folded_spans import StepRecord
from otel_rl.report.read.average import step_times
from otel_rl.report.read.awaited import awaited
from otel_rl.report.read.single_controller.driver_steps import first_submit, growing_stage, slow_process
from otel_rl.report.read.step_stages import apart
from otel_rl.report.read.unfinished import no_step

if TYPE_CHECKING:
    from otel_rl.report.source import Source

COMMUNICATION: Final = "communication"
MOST_CYCLE: Final = 16
"""Steps that share a rollout are taken together, up to so many."""


def time_rows(source: Source) -> TimeRows:
    """Return the rows, without the one step that would outweigh the others."""
    if not source.steps.averaged:
        return TimeRows(no_step=no_step(source))
    fair = source.fair
    steps = source.steps if fair.averaged is source.averaged else step_times(fair.averaged)
    return TimeRows(
        step_s=steps.total_s / steps.averaged if steps.averaged else 0.0,
        median_s=steps.median_s,
        stages=fair.stages,
        shares=stage_shares(fair.stages),
        efficiency=fair.efficiency,
        awaited=awaited(fair.ranks, fair.efficiency.ranks),
        long_step=fair.long_step,
        slower=_slower(fair.averaged.by_step),
        tails=source.requests.tails,
        roles=source.roles if source.found.led else (),
        trajectories=source.trajectories if source.found.led else None,
        all_step_s=source.averaged.mean_ns / 1e9,
        all_steps_s=source.averaged.time_ns / 1e9,
        settings=source.settings,
        slow_process=slow_process(source),
        growing=growing_stage(source),
        first_submit=first_submit(source),
        devices=source.devices,
        buffer=_buffer(source),
    )


def _buffer(source: Source) -> SampleBuffer | None:
    """Return how many prompts of the training wait for a step, where rollouts are ahead of it."""
    depths = {
        one.qualifiers.get(v.GROUP_STATE): [value for value in one.values if value is not None]
        for one in source.curves
        if one.name == v.GROUPS and one.qualifiers.get(v.MODE) != "eval"
    }
    if not source.is_ahead or not depths.get("finished"):
        return None
    return SampleBuffer(median(depths["finished"]), median(depths.get("running") or [0.0]))


def stage_shares(stages: Iterable[StageRow]) -> list[StageShare]:
    """Add up the shares of the table of stages by stage."""
    paths = [((row.stage,) if row.inside is None else (row.inside, row.stage), row) for row in stages]
    communication = apart((path, row.share * row.comm_share) for path, row in paths)
    shares = apart((path, row.share) for path, row in paths)
    return [StageShare(stage, share, communication[stage]) for stage, share in shares.items()]


def _slower(by_step: Mapping[StepKey, list[StepRecord]]) -> SlowerSteps | None:
    """Return from which step on steps take longer, in the loop of the last attempt with most steps."""
    loops: defaultdict[tuple[str, str], dict[StepKey, list[StepRecord]]] = defaultdict(dict)
    for key, records in by_step.items():
        loops[key[:2]][key] = records
    last = next(reversed(loops), ("", ""))[0]
    steps = max((steps for (attempt, _), steps in loops.items() if attempt == last), key=len, default={})
    rounds = _rounds(list(steps.values()))
    times_s = [fmean(record.step.time_ns for step in group for record in step) / 1e9 for group in rounds]
    found = level_shift(times_s)
    if found is None or found.after <= found.before:
        return None
    where = _grown(rounds[: found.index], rounds[found.index :])
    return SlowerSteps(rounds[found.index][0][0].step.iteration, found.before, found.after, where)


def _rounds(steps: Sequence[list[StepRecord]]) -> list[list[list[StepRecord]]]:
    """Take steps together that share a rollout, since one with a rollout takes longer than one without."""
    begins = [place for place, step in enumerate(steps) if any((v.SAMPLE,) in record.stages for record in step)]
    if len(steps) > MOST_CYCLE * len(begins):
        return [[step] for step in steps]
    ends = [*begins[1:], len(steps)]
    return [list(steps[begin:end]) for begin, end in zip(begins, ends, strict=True)]


def _grown(before: Sequence[list[list[StepRecord]]], after: Sequence[list[list[StepRecord]]]) -> str:
    """Name the stage that takes most of the difference, without the collectives in it."""
    times_ns = [_median_ns(rounds) for rounds in (before, after)]
    grown = {name: times_ns[1][name] - times_ns[0].get(name, 0.0) for name in times_ns[1]}
    return max(grown, key=lambda name: grown[name])


def _median_ns(rounds: Sequence[list[list[StepRecord]]]) -> dict[str, float]:
    times: defaultdict[str, list[float]] = defaultdict(list)
    for group in rounds:
        records = [record for step in group for record in step]
        sums: Counter[str] = Counter()
        for record in records:
            sums[v.OTHER] += record.other_ns
            own = apart((path, part.busy_ns - part.comm.time_ns) for path, part in record.stages.items())
            sums.update({stage: round(time_ns) for stage, time_ns in own.items()})
            sums[COMMUNICATION] += sum(part.comm.time_ns for path, part in record.stages.items() if len(path) == 1)
        for name, time_ns in sums.items():
            times[name].append(time_ns / len(records))
    return {name: median(found) * len(found) / len(rounds) for name, found in times.items()}
