"""One sentence on what holds the run back; docs/report.md lists the rules in this order."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.analysis.many_steps import COMM_SHARE
from otel_rl.analysis.stragglers import TIE_SHARE
from otel_rl.journal.read import OpenView, Run
from otel_rl.report.data.details import RequestTail
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import LongStep, StageRow, StepTimes, Verdict, VerdictKind
from otel_rl.report.data.time_use import WAITS_UNKNOWN, Efficiency, RankTime, SlowCommunication, StragglerRow
from otel_rl.report.read.average import Averaged
from otel_rl.report.read.collect import FoldedSpans
from otel_rl.report.read.span_attributes import ERROR
from otel_rl.runs.format import count, listed, percent, plural, seconds, times
from otel_rl.runs.spans import is_container, iteration_of, text

HOW_TO_BEGIN: Final = (
    "A step begins when a trainer that otel_rl knows trains (`otel-rl doctor` lists them), "
    "or where your own loop says `with otel_rl.step(number):`."
)
TRAINED: Final = frozenset((v.TRAIN, v.BACKWARD, v.CLIP, v.OPTIMIZER))

STRAGGLER_SHARE: Final = 0.05
"""A slow rank is the verdict if being as fast as the others would save this share of the median step time."""
IDLE_SHARE: Final = 0.2
OTHER_SHARE: Final = 0.2
TINY_STEP_S: Final = 0.01
"""Of shorter steps what runs between the stages is always a large part."""
TAIL_STEP_SHARE: Final = 0.1
"""The slowest requests are the verdict if they alone take this share of the step time."""
TAIL_RATIO: Final = 3.0
"""They must take this multiple of what as many of the others would take, too."""
LEAST_SHARE: Final = 0.0005
AWAITED_SHARE: Final = 0.5
"""A rank is waited for if it makes up this part of the longest wait; a stage explains it from this part of that."""
PART_SHARE: Final = 0.5

GROUPS: Final = {
    "generating rollouts": (v.SAMPLE, v.SAMPLE_PROCESS),
    "computing log-probabilities": (v.LOGPROB,),
    "computing rewards": (v.REWARD,),
    "the policy update": (v.TRAIN, v.FORWARD, v.BACKWARD, v.CLIP, v.OPTIMIZER),
    "evaluation": (v.EVALUATE,),
    "checkpoints": (v.CHECKPOINT,),
    "logging": (v.LOG, v.LOG_GATHER),
    "handing new weights to the rollout engine": (v.SYNC,),
}


@dataclass(frozen=True, slots=True)
class Awaited:
    """The ranks for which the others wait in their mean step."""

    ranks: list[Rank] = field(default_factory=list)
    """The one that is waited for longest first; empty if no rank makes up half of the longest wait."""
    stage: str | None = None
    more_s: float = 0.0
    is_spread: bool = False
    """Every rank waits at least half as long as the one that waits longest: now for one rank, now for another."""


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
    steps: Counter[Rank] = Counter()
    own_ns: defaultdict[str, Counter[Rank]] = defaultdict(Counter)
    incomparable = {v.COMM}
    for record in averaged.steady:
        steps[record.rank] += 1
        own_ns[v.OTHER][record.rank] += record.other_ns
        for path, part in record.stages.items():
            if len(path) == 1:
                own_ns[path[0]][record.rank] += part.own_ns
                if part.is_hidden or part.is_host_clock:
                    incomparable.add(path[0])
    return {
        stage: {rank: time_ns / steps[rank] / 1e9 for rank, time_ns in of_ranks.items()}
        for stage, of_ranks in own_ns.items()
        if stage not in incomparable
    }


def _mean(times_s: dict[Rank, float], ranks: Sequence[Rank]) -> float:
    return sum(times_s.get(rank, 0.0) for rank in ranks) / len(ranks)


def verdict(
    steps: StepTimes,
    stages: Sequence[StageRow],
    efficiency: Efficiency,
    long_step: LongStep | None = None,
    tails: Sequence[RequestTail] = (),
    waits: Awaited | None = None,
) -> Verdict:
    """Apply the rules in order; the first that holds gives the sentence. At least one step is averaged."""
    top = [row for row in stages if row.inside is None]
    found = (
        _straggler(efficiency)
        or _slow_communication(efficiency)
        or _waits(top, efficiency, waits or Awaited(), steps.median_s)
        or _tail(tails)
        or _largest(top, steps)
    )
    if long_step is None:
        return found
    aside = (
        f"Step {long_step.step} is left aside: it took {seconds(long_step.time_s)}, {times(long_step.ratio)} the "
        f"median, above all in {long_step.stage}."
    )
    return replace(found, sentence=f"{found.sentence} {aside}", long_step=long_step)


def _straggler(efficiency: Efficiency) -> Verdict | None:
    slow = [row for row in efficiency.stragglers if row.share >= STRAGGLER_SHARE]
    if not slow:
        return None
    worst = slow[0]
    peers = worst.role, worst.pipeline
    alike = [row for row in slow if (row.role, row.pipeline, row.stage) == (*peers, worst.stage)]
    named = [row for row in alike if _ties(row.cost_s, worst.cost_s)]
    num_peers = sum((one.role, one.pipeline) == peers for one in efficiency.ranks)
    against = "on the other rank" if num_peers == 2 else "on the median of the other ranks"
    against += efficiency.of_stage(worst.pipeline)
    who = _ranks(named, efficiency)
    elsewhere = [row for row in slow if row not in alike and _ties(row.cost_s, worst.cost_s)]
    places = ["under no stage" if row.stage == v.OTHER else f"in {row.stage}" for row in elsewhere]
    ties = [f"{_ranks([row], efficiency)} {place}" for row, place in zip(elsewhere, places, strict=True)]
    what = f"what runs under no stage ({v.OTHER})" if worst.stage == v.OTHER else worst.stage
    often = f" in {count(worst.slow_steps)} of {plural(worst.steps, 'step')}" if worst.is_at_times else ""
    sentence = (
        f"{who[0].upper()}{who[1:]} {'hold' if len(named) > 1 else 'holds'} the run back{often}: {what} takes "
        f"{times(worst.ratio)} as long there as {against}, which costs {seconds(worst.cost_s)} per step, "
        f"{percent(worst.share)} of the {worst.of_step}{f'; as much is lost by {listed(ties)}' if ties else ''}."
    )
    found = _verdict("straggler", sentence, worst.stage, worst.share)
    return replace(found, rank=worst.who, ratio=worst.ratio)


def _ranks(rows: Sequence[StragglerRow | Rank], efficiency: Efficiency) -> str:
    word = rows[0].role if len({one.role for one in efficiency.ranks}) > 1 else "rank"
    return f"{word}{'s' if len(rows) > 1 else ''} {listed([str(row.rank) for row in rows])}"


def _slow_communication(efficiency: Efficiency) -> Verdict | None:
    """Name collectives that take long on the rank that waits least, too; those of the slowest pipeline stage."""
    stages: defaultdict[int | None, list[SlowCommunication]] = defaultdict(list)
    for row in efficiency.slow_communication:
        stages[row.pipeline].append(row)
    if not stages:
        return None
    pipeline, slow = max(stages.items(), key=lambda item: sum(row.share for row in item[1]))
    share = sum(row.share for row in slow)
    where = [f"{seconds(row.transfer_s)} {_inside(row.stage)}" for row in slow]
    sentence = (
        f"Communication holds the run back: collectives take {listed(where)} per step, {percent(share)} of the median "
        f"step, on every rank{efficiency.of_stage(pipeline)} alike, so no rank is to blame."
    )
    return _verdict("slow communication", sentence, slow[0].stage, share)


def _inside(stage: str) -> str:
    return "under no stage" if stage in (v.COMM, v.OTHER) else f"inside {stage}"


def _waits(top: Sequence[StageRow], efficiency: Efficiency, waits: Awaited, step_s: float) -> Verdict | None:
    idle = sum(row.share for row in efficiency.bubbles if row.kind != "skew")  # also inside other stages
    if idle >= IDLE_SHARE:
        sentence = f"Waiting holds the run back: {percent(idle)} of the step time is {v.IDLE}."
        return _verdict("idle", sentence, v.IDLE, idle)
    comm = sum(row.share * row.comm_share for row in top)
    if comm >= COMM_SHARE:
        return _collectives(top, efficiency, waits, comm)
    other = _other(top)
    if other >= OTHER_SHARE and step_s >= TINY_STEP_S:
        sentence = (
            f"{percent(other)} of the step time lies under no stage; "
            'put `with otel_rl.stage("name"):` around what runs there to see what it is.'
        )
        return _verdict("other", sentence, v.OTHER, other)
    return None


def _collectives(top: Sequence[StageRow], efficiency: Efficiency, waits: Awaited, comm: float) -> Verdict:
    """Name the stages of the collectives and, if most of their time is waiting, for whom the ranks wait."""
    most = sorted(top, key=lambda row: row.share * row.comm_share, reverse=True)[:3]
    parts = [f"{percent(row.share * row.comm_share)} {_inside(row.stage)}" for row in most if row.comm_share]
    sentence = (
        f"Collectives hold the run back: the ranks spend {percent(comm)} of the step time in them: {', '.join(parts)}"
    )
    skew = sum(row.share for row in efficiency.bubbles if row.kind == "skew")
    is_exact = all(row.is_wait_exact for row in efficiency.ranks)
    larger = _larger(top, comm)
    if 2 * skew >= comm:
        least = "" if is_exact else "at least "
        waiting = f"; {least}{percent(skew)} is waiting{_for_whom(waits, efficiency)}."
        found = _verdict("comm", f"{sentence}{waiting}{larger}", v.COMM, comm)
        return replace(found, rank=waits.ranks[0]) if waits.ranks else found
    known = f"at least {percent(skew)} is waiting, and how much more" if skew >= LEAST_SHARE else "how much is waiting"
    unknown = "" if is_exact else f"; {known} is not known: {WAITS_UNKNOWN}"
    return _verdict("comm", f"{sentence}{unknown}.{larger}", v.COMM, comm)


def _larger(top: Sequence[StageRow], comm: float) -> str:
    own: defaultdict[str, float] = defaultdict(float)
    for row in top:
        if row.stage not in (v.OTHER, v.COMM):
            own[_group(row.stage)] += row.share * (1 - row.comm_share)
    name = max(own, key=lambda one: own[one], default="")
    return f" More goes into {name}: {percent(own[name])} without them." if name and own[name] > comm else ""


def _for_whom(waits: Awaited, efficiency: Efficiency) -> str:
    if not waits.ranks:
        return f" for the slowest{', now one rank, now another' if waits.is_spread else ''}"
    who = f", mostly for {_ranks(waits.ranks, efficiency)}"
    if waits.stage is None:
        return who
    spends = "spends" if len(waits.ranks) == 1 else "spend"
    return f"{who}, which {spends} {seconds(waits.more_s)} per step more than the others {_inside(waits.stage)}"


def _tail(tails: Sequence[RequestTail]) -> Verdict | None:
    """Name the fewest requests that hold up the steps far longer than as many others do."""
    for tail in sorted(tails, key=lambda one: one.slowest):
        share = tail.step_share or 0.0
        if share >= TAIL_STEP_SHARE and tail.share >= TAIL_RATIO * tail.slowest:
            sentence = (
                f"The slowest {tail.slowest * 100:.0f} % of the rollout requests hold the run back: "
                f"they alone take {percent(tail.share)} of the rollout, {percent(share)} of the step time."
            )
            return _verdict("tail", sentence, v.SAMPLE, share)
    return None


def _largest(top: Sequence[StageRow], steps: StepTimes) -> Verdict:
    groups: dict[str, list[StageRow]] = {}
    for row in top:
        if row.stage != v.OTHER:
            groups.setdefault(_group(row.stage), []).append(row)
    if not groups:
        return _verdict(
            "nothing",
            "No stage was recorded, so nothing can be said about what holds the run back; "
            'put `with otel_rl.stage("name"):` around the parts of a step.',
        )
    shares = {name: sum(row.share for row in rows) for name, rows in groups.items()}
    largest = max(shares.values())
    if not largest:
        return _verdict("nothing", "No stage took any time by this clock, so nothing holds the run back.")
    names = sorted((name for name in shares if _ties(shares[name], largest)), key=lambda name: -shares[name])
    step_s = steps.total_s / steps.averaged
    sentence = (
        f"Most time goes into {listed(names)}: {percent(largest)} of the mean step{' each' if len(names) > 1 else ''}, "
        f"{seconds(largest * step_s)} of {seconds(step_s)}"
    )
    main = _main_part(names[0], groups[names[0]], largest) if len(names) == 1 else ""
    other = _other(top)
    unknown = f"; {percent(other)} lies under no stage" if other >= OTHER_SHARE else ""
    return _verdict("stage", f"{sentence}{main}{unknown}.", groups[names[0]][0].stage, largest)


def _ties(value: float, largest: float) -> bool:
    return value > (1 - TIE_SHARE) * largest


def _main_part(name: str, rows: Sequence[StageRow], share: float) -> str:
    main = max(rows, key=lambda row: row.share)
    if main.stage == name or any(row.is_host_clock for row in rows) or main.share < PART_SHARE * share:
        return ""
    return f" ({main.stage})" if len(rows) == 1 else f" (mostly {main.stage})"


def _other(top: Sequence[StageRow]) -> float:
    return sum(row.share for row in top if row.stage == v.OTHER)


def _group(stage: str) -> str:
    kind = next(iter(stage.split(maxsplit=1)), "")
    return next((group for group, members in GROUPS.items() if kind in members), stage)


def _verdict(kind: VerdictKind, sentence: str, stage: str | None = None, share: float | None = None) -> Verdict:
    return Verdict(kind=kind, sentence=sentence, stage=stage, share=share, rank=None, ratio=None, long_step=None)


def nothing(run: Run, found: FoldedSpans, opened: Sequence[OpenView], *, is_counted: bool) -> Verdict:
    ending = _ending(run, opened)
    systems = [str(one[v.SYSTEM]) for one in found.resources.values() if one.get(v.SYSTEM)]
    sentence = (
        _unread(run)
        or _unfinished(run, found, opened)
        or _unspanned(run, is_counted)
        or _unknown_steps(found, systems, ending)
        or _unbegun(run, found, systems, ending)
    )
    return _verdict("nothing", sentence)


def _unread(run: Run) -> str:
    if any(sum(journal.records.values()) for journal in run.journals):
        return ""
    if run.damage:
        return (
            "Nothing could be read: what the journal holds is damaged or cannot be opened, as listed below. "
            "Read it as the user who recorded it, or copy it again from where it was recorded."
        )
    if run.alive():
        return "Nothing is in the journal yet; it is written every half second."
    return (
        "The journal is empty: the process ended before it wrote anything. It writes every half second and when it "
        "ends by itself; `otel-rl doctor` says whether it can."
    )


def _unfinished(run: Run, found: FoldedSpans, opened: Sequence[OpenView]) -> str:
    if run.alive() and any(iteration_of(view.attributes) is not None for view in opened):
        return "The first step goes on; what holds the run back can be said when it is finished."
    if found.failures:
        return "No step was finished: an exception ended each of them."
    if found.steps:
        return "No step was finished: the process ended in the first one."
    return ""


def _ending(run: Run, opened: Sequence[OpenView]) -> str:
    failed = [span for span in run.spans((v.ERROR_TYPE,)) if span.status_code == ERROR and is_container(span.name)]
    if failed:
        return f"{text(failed[0].attributes, v.ERROR_TYPE)} ended the process"
    is_cut = any(is_container(view.name) for view in opened)
    return "the process was killed" if is_cut and not run.alive() else ""


def _unspanned(run: Run, is_counted: bool) -> str:
    if not is_counted:
        return ""
    lost = "none was sampled (OTEL_TRACES_SAMPLER), or they were removed to keep the journal below "
    why = "some files could not be read, as listed below" if run.damage else f"{lost}OTEL_RL_JOURNAL_MAX_BYTES"
    return f"The steps' numbers are here, but no step's spans: {why}."


def _unknown_steps(found: FoldedSpans, systems: Sequence[str], ending: str) -> str:
    if TRAINED.isdisjoint(found.longest_ns):
        return ""
    who = systems[-1] if systems else "The program"
    ended = f" {ending[0].upper()}{ending[1:]}." if ending else ""
    return (
        f"{who} trained, but no step was recorded: otel_rl did not learn where one begins. {HOW_TO_BEGIN} "
        f"`otel-rl doctor RUN` names methods of a trainer that another library has replaced.{ended}"
    )


def _unbegun(run: Run, found: FoldedSpans, systems: Sequence[str], ending: str) -> str:
    if run.alive():
        return f"No step has begun yet. {HOW_TO_BEGIN}"
    if ending:
        did_more = any(not call.startswith(v.SETUP) for call in found.longest_ns)
        advice = f" {HOW_TO_BEGIN}" if did_more and not systems else ""
        return f"No step began: {ending} in its set-up.{advice}"
    if systems:
        did = "evaluated, and did not train"
        ended = "was found, but the process ended before its trainer began to train"
        return f"No step began: {systems[-1]} {did if v.EVALUATE in found.longest_ns else ended}."
    return f"No step began: otel_rl was on, but it found no step. {HOW_TO_BEGIN}"
