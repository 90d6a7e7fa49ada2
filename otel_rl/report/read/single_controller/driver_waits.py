"""What the rules of time read of the waits of a driver."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from operator import itemgetter
from statistics import median
from typing import TYPE_CHECKING, Final

from otel_rl import vocabulary as v
from otel_rl.analysis.series.rising import rise
from otel_rl.findings.time_spent import BesideTurns, GrowingStage, HeldUp, Late, SlowProcess, Starting
from otel_rl.report.data.report import StageRow
from otel_rl.report.data.roles import which
from otel_rl.runs.format import plural
from otel_rl.runs.role_words import role_in_words

if TYPE_CHECKING:
    from otel_rl.report.fold.folded_spans import StepRecord
    from otel_rl.report.source import Source

QUEUE: Final = f"{v.IDLE} queue"
BESIDE: Final = (v.REWARD, f"{v.EXECUTE_TOOL} ")
"""How the names of what a trajectory calls beside its turns begin."""
POLL: Final = v.SETTINGS_POLL.removeprefix(v.SETTINGS)
STARTING_NS: Final = 2_000_000_000
STARTING_RATIO: Final = 5.0
SEVERAL_TURNS: Final = 1.5


def generating_share(source: Source, top: Iterable[StageRow], stages: Collection[str] = (QUEUE,)) -> float:
    """Return the share of the step in which a driver waits in these stages while rollouts go on; 0 without a driver."""
    found, mean_s = source.trajectories, source.averaged.mean_ns / 1e9
    waiting = sum(row.share for row in top if row.stage in stages)
    if found is None or not mean_s:
        return 0.0
    return waiting if found.generating_s is None else min(waiting, found.generating_s / mean_s)


def beside_turns(source: Source, top: Iterable[StageRow]) -> BesideTurns | None:
    """Look for what takes most of the trajectories beside turns: rewards together, or a tool."""
    rows = [row for role in source.roles if not role.is_rank for row in role.stages]
    total_s = sum(row.total_s for row in rows if row.stage == v.TRAJECTORY)
    times: defaultdict[str, float] = defaultdict(float)
    for row in rows:
        if row.stage.startswith(BESIDE):
            times[v.REWARD if row.stage.startswith(v.REWARD) else row.stage] += row.total_s
    if not times or not total_s:
        return None
    stage, time_s = max(times.items(), key=itemgetter(1))
    count, share = sum(row.calls for row in rows if row.stage == v.TRAJECTORY), min(1.0, time_s / total_s)
    waits = generating_share(source, top, (QUEUE, v.SAMPLE))
    return BesideTurns(stage, time_s / count, total_s / count, share * waits)


def has_turns(source: Source) -> bool:
    """Return whether trajectories have several turns: then the last requests of a rollout are not the slowest."""
    calls: Counter[str] = Counter()
    for role in source.roles:
        for row in role.stages:
            calls[row.stage] += row.calls
    return calls[v.SAMPLE_TURN] > SEVERAL_TURNS * calls[v.TRAJECTORY]


def late(source: Source) -> Late | None:
    found, mean_s = source.trajectories, source.averaged.mean_ns / 1e9
    if found is None or not found.late_s or not mean_s:
        return None
    poll_s = source.settings.get(POLL)
    asks = "" if poll_s is None else f": the driver looks for them every {poll_s:g} s (poll_interval)"
    return Late(found.late_s, found.late_s / mean_s, asks)


def held_up(source: Source) -> HeldUp | None:
    found = source.trajectories
    if found is None or not found.held:
        return None
    one = found.held[0]
    others = len(found.held) - 1
    return HeldUp(
        which=which(one.sample, one.group) + (f", with {more} more," if (more := one.trajectories - 1) else ""),
        step=one.step,
        held_s=one.held_s,
        share=one.share,
        inside=one.inside,
        inside_s=one.inside_s,
        of_all=sum(row.held_s for row in found.held) / (source.averaged.time_ns / 1e9),
        others=f" {plural(others, 'more step')} had such a one." if others else "",
    )


def slow_process(source: Source) -> SlowProcess | None:
    """Compare the processes of a role that are no ranks: agent loops, servers, reward workers."""
    one = source.found.roles.slowest({rank for _, rank in source.found.guests}) if source.roles else None
    steps, step_s = len({record.key for record in source.averaged.finished}), source.averaged.mean_ns / 1e9
    if one is None or not steps or not step_s:
        return None
    word = role_in_words(one.rank.role)
    peers = [rank for rank in source.ranks if rank.role == one.rank.role and rank != one.rank]
    cost_s = min(step_s, one.cost_s / steps)
    return SlowProcess(
        who=f"{word} {one.rank.rank}",
        others=f"{word} {peers[0].rank}" if len(peers) == 1 else f"the other {word}s",
        stage=one.stage,
        own_s=one.own_s,
        others_s=one.others_s,
        cost_s=cost_s,
        share=cost_s / step_s,
    )


def growing(source: Source) -> GrowingStage | None:
    """Look for the stage of a driver that takes longer from step to step, in the last attempt."""
    last = source.attempts[-1].id if source.attempts else ""
    steps = [record for record in source.averaged.steady if record.attempt == last] if source.roles else []
    stages = {
        path[0] for record in steps for path in record.stages if len(path) == 1 and not path[0].startswith(v.IDLE)
    }
    rises = {stage: rise([_busy_s(record, stage) for record in steps]) for stage in stages}
    known = {stage: one for stage, one in rises.items() if one is not None}
    stage = max(known, key=lambda name: known[name].last - known[name].first, default="")
    if not stage:
        return None
    first_s, last_s = known[stage].first, known[stage].last
    mean_s = source.averaged.mean_ns / 1e9
    return GrowingStage(stage, len(steps), first_s, last_s, (last_s - first_s) / mean_s if mean_s else 0.0)


def _busy_s(record: StepRecord, stage: str) -> float:
    part = record.stages.get((stage,))
    return part.busy_ns / 1e9 if part is not None else 0.0


def starting(source: Source) -> Starting | None:
    """Look at the first step of the last attempt, in which agent loops may start while they get their prompts."""
    last = source.attempts[-1].id if source.attempts else ""
    steps = [record for record in source.averaged.finished if record.attempt == last] if source.roles else []
    times_ns = [part.busy_ns if (part := record.stages.get((v.SAMPLE_SUBMIT,))) else 0 for record in steps]
    if len(times_ns) < 2 or times_ns[0] < max(STARTING_NS, STARTING_RATIO * median(times_ns[1:])):
        return None
    whole_ns = steps[0].step.time_ns
    return Starting(steps[0].step.iteration, times_ns[0] / 1e9, times_ns[0] / whole_ns if whole_ns else 0.0)
