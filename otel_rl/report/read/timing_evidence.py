"""What the rules of time read, gathered from the averaged steps."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from statistics import fmean, median
from typing import TYPE_CHECKING, Final

from otel_rl import vocabulary as v
from otel_rl.analysis.series.level_shift import level_shift
from otel_rl.analysis.stragglers import TIE_SHARE
from otel_rl.findings.time_spent import (
    Long,
    PeerWait,
    SampleCall,
    SlowCalls,
    Slower,
    SlowRanks,
    Tail,
    Timing,
    Use,
)
from otel_rl.report.data.ranks import OfRank, Rank
from otel_rl.report.data.report import LongStep, StageRow
from otel_rl.report.data.time_use import Efficiency, SlowCommunication, SlowRankRow
from otel_rl.report.fold.folded_spans import StepKey, StepRecord
from otel_rl.report.read.average import step_times
from otel_rl.report.read.awaited import Awaited, awaited
from otel_rl.report.read.no_step import no_step
from otel_rl.report.read.single_controller.driver_waits import (
    beside_turns,
    generating_share,
    growing,
    has_turns,
    held_up,
    late,
    slow_process,
    starting,
)
from otel_rl.report.read.step_stages import apart
from otel_rl.runs.format import count, listed, plural, seconds

if TYPE_CHECKING:
    from otel_rl.report.source import Source

GENERATING: Final = "generating"
WAITING: Final = "waiting"
UPDATE: Final = "the update"
COMMUNICATION: Final = "communication"
WORDS: Final = {
    "sampling": (v.SAMPLE, f"{v.SAMPLE}.generate"),
    "handing out prompts": (v.SAMPLE_SUBMIT,),
    "preparing responses": (v.SAMPLE_PROCESS,),
    "log-probabilities": (v.LOGPROB,),
    "values": (v.VALUE,),
    "rewards": (v.REWARD,),
    UPDATE: (v.TRAIN, v.FORWARD, v.BACKWARD, v.CLIP, v.OPTIMIZER),
    "evaluation": (v.EVALUATE,),
    "checkpoints": (v.CHECKPOINT,),
    "logging": (v.LOG,),
    "handing over new weights": (v.SYNC,),
    "communication under no stage": (v.COMM,),
    "waiting for data": (f"{v.IDLE} data",),
    WAITING: (v.IDLE,),
    "time under no stage": (v.OTHER,),
}
LEAST_PART: Final = 0.005
"""A smaller part of the update is not named."""
MOST_CYCLE: Final = 16
"""Steps that share a rollout are taken together, up to so many."""
MOST_STAGES: Final = 3
ALIKE_SHARE: Final = 0.5
"""Ranks that are slow in the same stages are named together from this part of the largest cost on."""


def timing(source: Source) -> Timing:
    """Gather what the rules read, without the one step that would outweigh the others."""
    if not source.steps.averaged:
        is_counted = bool(source.points.stepped)
        found = no_step(source.run, source.found, source.opened, source.unwritten, is_counted=is_counted)
        return Timing(no_step=found, goes_on=source.run.alive())
    fair = source.fair
    times, top = fair.efficiency, [row for row in fair.stages if row.inside is None]
    steps = step_times(fair.averaged)
    generating = generating_share(source, top)
    return Timing(
        step_s=steps.total_s / steps.averaged if steps.averaged else 0.0,
        median_s=steps.median_s,
        uses=_of_driver(uses(fair.stages), generating) if generating else uses(fair.stages),
        num_ranks=sum(row.relative_score is not None for row in times.ranks),
        slow=_slow(times, is_led=bool(source.roles)),
        calls=_slow_calls(times),
        wait=_wait(times, awaited(fair.ranks, times.ranks), is_led=bool(source.roles)),
        idle=_idle(times, top, generating) if source.roles else _bubbles(times),
        other=sum(row.share for row in top if row.stage == v.OTHER),
        tails=[]
        if has_turns(source)
        else [Tail(one.slowest, one.share, one.step_share or 0.0) for one in source.requests.tails],
        sampling=_sampling(fair.stages),
        slower=_slower(fair.averaged.steady),
        long=_long(fair.long_step),
        beside_turns=beside_turns(source, top),
        late=late(source),
        held=held_up(source),
        slow_process=slow_process(source),
        growing=growing(source),
        starting=starting(source),
    )


def uses(stages: Iterable[StageRow]) -> list[Use]:
    """Add up the shares of the table of stages, in plain words."""
    paths = [((row.stage,) if row.inside is None else (row.inside, row.stage), row) for row in stages]
    shares = apart((path, row.share) for path, row in paths)
    comm = apart((path, row.share * row.comm_share) for path, row in paths)
    groups: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for stage, share in shares.items():
        groups[_word(stage)][stage] = share
    found = [
        Use(_named_update(of) if word == UPDATE else word, sum(of.values()), sum(comm[stage] for stage in of))
        for word, of in groups.items()
    ]
    return sorted((use for use in found if use.share > 0), key=lambda use: -use.share)


def _named_update(shares: Mapping[str, float]) -> str:
    """Name the stages of an update that the table has apart."""
    parts = [stage for stage in WORDS[UPDATE] if shares.get(stage, 0.0) >= LEAST_PART]
    return f"{UPDATE} ({', '.join(stage.rpartition('.')[2] for stage in parts)})" if len(parts) > 1 else UPDATE


def _of_driver(found: list[Use], generating: float) -> list[Use]:
    """Count the waits of a driver for rollouts that go on as generating."""
    known = {use.name: use for use in (Use(WAITING, 0.0), Use(GENERATING, 0.0), *found)}
    for name, share in ((WAITING, -generating), (GENERATING, generating)):
        known[name] = replace(known[name], share=known[name].share + share)
    return sorted((use for use in known.values() if use.share > 0), key=lambda use: -use.share)


def _bubbles(times: Efficiency) -> dict[str, float]:
    return {row.kind: row.share for row in times.bubbles if row.kind != "skew"}  # also inside other stages


def _idle(times: Efficiency, top: Sequence[StageRow], generating: float) -> dict[str, float]:
    """Return what a driver waits for, without rollouts that go on: its ranks wait for it most of the time."""
    shares = {name: sum(row.share for row in top if row.stage == f"{v.IDLE} {name}") for name in ("data", "queue")}
    return {**shares, "queue": max(0.0, shares["queue"] - generating)}


def _word(stage: str) -> str:
    kind = next(iter(stage.split(maxsplit=1)), "")
    for names in (stage, kind):
        word = next((word for word, stages in WORDS.items() if names in stages), "")
        if word:
            return word
    return stage or "a stage without a name"


def _slow(times: Efficiency, *, is_led: bool) -> SlowRanks | None:
    """Name the costliest rank, with those of its peers that are slow in the same way."""
    if not times.slow_ranks:
        return None
    worst = times.slow_ranks[0]
    alike = [row for row in times.slow_ranks if _is_alike(row, worst)]
    others = [row for row in times.slow_ranks if row not in alike and _ties(row.cost_s, worst.cost_s)]
    own_s, others_s, often = worst.own_s, worst.others_s, ""
    if not worst.is_everywhere and len(worst.stages) == 1:  # of its steps that have the stage
        one = next(row for row in times.stragglers if row.who == worst.who)
        own_s, others_s = one.own_s, one.own_s / one.ratio if one.ratio else 0.0
        often = f" in {count(one.slow_steps)} of {plural(one.steps, 'step')}" if one.is_at_times else ""
    return SlowRanks(
        who=_ranks([row.who for row in alike], times, is_led=is_led) + times.of_stage(worst.pipeline),
        rank=worst.rank,
        are="is" if len(alike) == 1 else "are",
        where="everything" if worst.is_everywhere else listed([_named(stage) for stage in worst.stages[:MOST_STAGES]]),
        stage=worst.stages[0],
        own_s=own_s,
        others_s=others_s,
        cost_s=worst.cost_s,
        share=worst.share,
        is_everywhere=worst.is_everywhere,
        is_starved=worst.is_starved,
        core_share=worst.core_share or 0.0,
        often=often,
        besides=" without waits for the driver" if is_led else "",
        others="".join(_elsewhere(row, times, is_led=is_led) for row in others),
    )


def _is_alike(row: SlowRankRow, worst: SlowRankRow) -> bool:
    if (row.role, row.pipeline, row.is_everywhere) != (worst.role, worst.pipeline, worst.is_everywhere):
        return False
    return row.is_everywhere or (row.stages == worst.stages and row.cost_s >= ALIKE_SHARE * worst.cost_s)


def _elsewhere(row: SlowRankRow, times: Efficiency, *, is_led: bool) -> str:
    where = "everything" if row.is_everywhere else _named(row.stages[0])
    who = _ranks([row.who], times, is_led=is_led)
    return f" {who[0].upper()}{who[1:]} costs as much in {where}."


def _ties(value: float, largest: float) -> bool:
    return value > (1 - TIE_SHARE) * largest


def _named(stage: str) -> str:
    return {v.OTHER: "what runs under no stage", v.COMM: "collectives under no stage"}.get(stage, stage)


def _ranks(ranks: Sequence[Rank | OfRank], times: Efficiency, *, is_led: bool) -> str:
    word = ranks[0].role if is_led or len({one.role for one in times.ranks}) > 1 else "rank"
    return f"{word}{'s' if len(ranks) > 1 else ''} {listed([str(one.rank) for one in ranks])}"


def _slow_calls(times: Efficiency) -> SlowCalls | None:
    """Take those of the slowest pipeline stage."""
    stages: defaultdict[int | None, list[SlowCommunication]] = defaultdict(list)
    for row in times.slow_communication:
        stages[row.pipeline].append(row)
    if not stages:
        return None
    pipeline, slow = max(stages.items(), key=lambda item: sum(row.share for row in item[1]))
    calls = max(1.0, sum(row.count for row in slow))  # a hidden one is not counted
    return SlowCalls(
        where=listed([f"{seconds(row.transfer_s)} {_inside(row.stage)}" for row in slow]),
        stage=slow[0].stage,
        share=sum(row.share for row in slow),
        call_s=sum(row.transfer_s for row in slow) / calls,
        peers=times.of_stage(pipeline),
    )


def _inside(stage: str) -> str:
    return "under no stage" if stage in (v.COMM, v.OTHER) else f"in {stage}"


def _wait(times: Efficiency, waits: Awaited, *, is_led: bool) -> PeerWait | None:
    if not times.ranks:
        return None
    skew = sum(row.share for row in times.bubbles if row.kind == "skew")
    longest = max(times.ranks, key=lambda row: row.wait_s)
    reason = ""
    if waits.ranks and waits.stage is not None:
        spends = "spends" if len(waits.ranks) == 1 else "spend"
        reason = f", which {spends} {seconds(waits.more_s)} more than they do {_inside(waits.stage)}"
    return PeerWait(
        share=skew,
        longest_s=longest.wait_s,
        step_s=longest.step_s,
        is_exact=all(row.is_wait_exact for row in times.ranks),
        is_spread=waits.is_spread,
        who=_ranks(waits.ranks, times, is_led=is_led) if waits.ranks else "",
        rank=waits.ranks[0].rank if waits.ranks else None,
        reason=reason,
    )


def _sampling(stages: Sequence[StageRow]) -> SampleCall | None:
    place = next((place for place, row in enumerate(stages) if row.stage == v.SAMPLE and row.inside is None), None)
    if place is None or not stages[place].share:
        return None
    whole = stages[place]
    below = takewhile(lambda row: row.inside is not None, stages[place + 1 :])  # those of evaluations are elsewhere
    return SampleCall(
        whole.median_s, whole.share, {row.stage: row.share / whole.share for row in below if row.inside == v.SAMPLE}
    )


def _long(step: LongStep | None) -> Long | None:
    return None if step is None else Long(step.step, step.time_s, step.ratio, step.stage)


def _slower(records: Iterable[StepRecord]) -> Slower | None:
    """Look for the step from which on steps take longer, in the loop of the last attempt with most steps."""
    loops: defaultdict[tuple[str, str], dict[StepKey, list[StepRecord]]] = defaultdict(dict)
    for record in records:
        loops[record.attempt, record.step.loop].setdefault(record.key, []).append(record)
    last = next(reversed(loops), ("", ""))[0]
    steps = max((steps for (attempt, _), steps in loops.items() if attempt == last), key=len, default={})
    rounds = _rounds(list(steps.values()))
    times_s = [fmean(record.step.time_ns for step in group for record in step) / 1e9 for group in rounds]
    found = level_shift(times_s)
    if found is None or found.after <= found.before:
        return None
    where = _grown(rounds[: found.index], rounds[found.index :])
    return Slower(rounds[found.index][0][0].step.iteration, found.before, found.after, where)


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
    return _inside(max(grown, key=lambda name: grown[name])).removeprefix("in ")


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
