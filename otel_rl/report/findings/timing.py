"""Where the time goes, and what would gain most: the rules of TIME."""

from __future__ import annotations

from dataclasses import asdict
from itertools import takewhile
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.analysis.series.level_shift import DEVIATIONS, FEWEST
from otel_rl.report.data.time_rows import TimeRows
from otel_rl.report.findings.no_step import NO_STEP
from otel_rl.report.findings.rollout_rules import ROLLOUTS, generating_share, has_turns
from otel_rl.report.findings.rule import Found, Rule, rule, table, whole
from otel_rl.report.findings.slow_ranks import AVERAGED, PER_STAGE, SLOW_RANKS
from otel_rl.report.findings.uses import Use, uses

IDLE_SHARE: Final = 0.2
OTHER_SHARE: Final = 0.3
BESIDES: Final = {"evaluation": 0.5, "checkpoints": 0.5, "handing over new weights": 0.3}
"""Shares of the step from which on work besides rollouts and updates is too much."""
TINY_STEP_S: Final = 0.01
"""In shorter steps, what runs between the stages is always a large part."""
TAIL_STEP_SHARE: Final = 0.1
TAIL_RATIO: Final = 3.0
"""The slowest requests must take this multiple of what as many of the others would take, too."""
AROUND_SHARE: Final = 0.3
AROUND_STEP_SHARE: Final = 0.2
SLOWER: Final = 1.5
LEAST_USE: Final = 0.005
LEAST_COMMUNICATION: Final = 0.1
LEAST_GPU_USE: Final = 0.5
"""The usual limit below which data loading, communication or the host are the bottleneck."""
READINGS: Final = 12
"""The fewest readings that are judged: a minute of them."""
GENERATE: Final = f"{v.SAMPLE}.generate"
DOING: Final = {f"{v.SAMPLE}.tokenize": "tokenizing", f"{v.SAMPLE}.decode": "decoding"}
AWAITED: Final = {
    "data": "data",
    "queue": "a queue",
    "pipeline": "a neighbour in the pipeline",
    "controller": "the driver's next call",
}
IDLES: Final = f"`rl.idle` takes at least {whole(IDLE_SHARE)} of the step time"


@rule(
    "warning",
    reads=(v.IDLE, v.IDLE_REASON),
    condition=f"waiting for data takes at least {whole(IDLE_SHARE)} of the step time, also inside other stages; "
    f"or {IDLES}, above all for data",
    window=AVERAGED,
    sentence="The data loader holds the run back: {idle_s:seconds} of {step_s:seconds} per step wait for the next "
    "batch ({share:percent}).",
    advice="Use more workers, prefetch, or prepare the data before the training.",
)
def slow_data(rows: TimeRows) -> Found | None:
    share = _data_share(rows)
    return Found({"idle_s": share * rows.step_s, "step_s": rows.step_s, "share": share}, share) if share else None


@rule(
    "warning",
    reads=(v.IDLE, v.IDLE_REASON),
    condition=f"{IDLES}, without what `slow_data` names",
    window=AVERAGED,
    sentence="Waiting holds the run back: {idle_s:seconds} of {step_s:seconds} per step are spent waiting[ for {what}] "
    "({share:percent}).",
    advice="Look at who makes what is waited for, and whether that can begin earlier.",
    silenced_by=("late_samples",),
)
def idle(rows: TimeRows, *, limit: float = IDLE_SHARE) -> Found | None:
    shares = {reason: share for reason, share in _idle(rows).items() if reason != "data" or not _data_share(rows)}
    share, reason = sum(shares.values()), max(shares, key=lambda reason: shares[reason], default="")
    if share < limit:
        return None
    values = {"idle_s": share * rows.step_s, "step_s": rows.step_s, "share": share, "what": AWAITED.get(reason)}
    return Found(values, share)


def _idle(rows: TimeRows) -> dict[str, float]:
    """Return shares of the step by reason, also inside other stages.

    With a driver they are its waits, without those for rollouts that go on: its ranks wait for it most of the time.
    """
    if not rows.roles:
        return {row.kind: row.share for row in rows.efficiency.bubbles if row.kind != "skew"}
    data, queue = (rows.share_of(f"{v.IDLE} {reason}") for reason in ("data", "queue"))
    return {"data": data, "queue": max(0.0, queue - generating_share(rows))}


def _data_share(rows: TimeRows) -> float:
    """Return the share of the step in which it waits for data; 0 if that is not much."""
    shares = _idle(rows)
    share = shares.get("data", 0.0)
    is_most = share >= max(shares.values(), default=0.0) and sum(shares.values()) >= IDLE_SHARE
    return share if is_most or share >= IDLE_SHARE else 0.0


@rule(
    "warning",
    reads=(v.SAMPLE, GENERATE, *DOING),
    condition=f"a stage inside `rl.sample` other than `rl.sample.generate` takes at least {whole(AROUND_SHARE)} "
    f"of it, and {whole(AROUND_STEP_SHARE)} of the step",
    window=AVERAGED,
    sentence="rl.sample takes {sample_s:seconds}, of which generating {generate_s:seconds} and {what} "
    "{time_s:seconds} ({share:percent} of the step).",
    advice="Speed up this part first: the engine is not what takes the time.",
)
def around_generation(
    rows: TimeRows, *, limit: float = AROUND_SHARE, step_limit: float = AROUND_STEP_SHARE
) -> Found | None:
    place = next((place for place, row in enumerate(rows.stages) if (row.stage, row.inside) == (v.SAMPLE, None)), None)
    if place is None or not rows.stages[place].share:
        return None
    sample, below = rows.stages[place], takewhile(lambda row: row.inside is not None, rows.stages[place + 1 :])
    shares = {row.stage: row.share / sample.share for row in below if row.inside == v.SAMPLE}  # not of evaluations
    others = {stage: share for stage, share in shares.items() if stage != GENERATE}
    stage = max(others, key=lambda name: others[name], default="")
    share = others.get(stage, 0.0)
    if GENERATE not in shares or share < limit or share * sample.share < step_limit:
        return None
    return Found(
        {
            "sample_s": sample.median_s,
            "generate_s": shares[GENERATE] * sample.median_s,
            "what": DOING.get(stage, stage),
            "stage": stage,
            "time_s": share * sample.median_s,
            "share": share * sample.share,
        },
        share * sample.share,
        stage=stage,
    )


@rule(
    "warning",
    reads=(v.STEP_TIME, *PER_STAGE),
    condition=f"from one step on, steps take at least {SLOWER} times as long as before, at once and by more than "
    f"{DEVIATIONS:.0f} times their scatter (medians; Pettitt's test)",
    window=f"the averaged steps of the last attempt, about {FEWEST} or more before and after, in long runs "
    "about the square root of their number",
    sentence="Steps take {ratio:times} as long since step {step} ({before_s:seconds} to {after_s:seconds}), above "
    "all {stage:inside}.",
    advice="Look at what changed then: other programs on the machine, longer prompts or responses, a file system.",
)
def slower_since(rows: TimeRows, *, times: float = SLOWER) -> Found | None:
    slower = rows.slower
    if slower is None or slower.after_s < times * slower.before_s:
        return None
    ratio = slower.after_s / slower.before_s
    return Found({**asdict(slower), "ratio": ratio}, 1 - 1 / ratio, since=slower.step, stage=slower.stage)


@rule(
    "warning",
    reads=(v.TAIL, v.SAMPLE),
    condition=f"the slowest 1, 5 or 10 % of the requests alone take at least {whole(TAIL_STEP_SHARE)} of the "
    f"step, and of the rollout at least {TAIL_RATIO:.0f} times their number, and answers have one turn",
    window=AVERAGED,
    sentence="The slowest {slowest} % of the responses alone take {share:percent} of the rollout, "
    "{step_share:percent} of the step.",
    advice="Lower the limit of the length, or let other work begin before the last responses end.",
    silenced_by=("held_step", "beside_turns"),
)
def slow_tail(rows: TimeRows, *, limit: float = TAIL_STEP_SHARE, times: float = TAIL_RATIO) -> Found | None:
    """Find the fewest requests that hold up the steps far longer than as many others do."""
    for tail in sorted([] if has_turns(rows) else rows.tails, key=lambda tail: tail.slowest):
        step_share = tail.step_share or 0.0
        if step_share >= limit and tail.share >= times * tail.slowest:
            values = {"slowest": round(100 * tail.slowest), "share": tail.share, "step_share": step_share}
            return Found(values, step_share, stage=v.SAMPLE)
    return None


@rule(
    "warning",
    reads=(v.EVALUATE, v.CHECKPOINT, v.SYNC),
    condition="evaluations or checkpoints take at least half of the step time, or new weights for the engine 30 %, "
    "without their collectives",
    window=AVERAGED,
    sentence="{what:Text} {what:takes|take} {share:percent} of the step time.",
    advice="Do it less often, make it smaller, or do it in the background.",
)
def besides_training(rows: TimeRows) -> Found | None:
    for use in uses(rows):
        if use.share - use.communication >= BESIDES.get(use.name, 2.0):
            return Found({"what": use.name, "share": use.share}, use.share - use.communication)
    return None


@rule(
    "warning",
    reads=(v.OTHER,),
    condition=f"at least {whole(OTHER_SHARE)} of the step time lies under no stage, and the median step takes at "
    f"least {TINY_STEP_S * 1000:.0f} ms",
    window=AVERAGED,
    sentence="{share:percent} of the step time lies under no stage.",
    advice='Put `with otel_rl.stage("name"):` around what runs there.',
)
def unknown_time(rows: TimeRows, *, limit: float = OTHER_SHARE) -> Found | None:
    share = rows.share_of(v.OTHER)
    if share < limit or rows.median_s < TINY_STEP_S:
        return None
    return Found({"share": share}, share, stage=v.OTHER)


@rule(
    "note",
    reads=(v.STEP_TIME,),
    condition="a single step took at least five times the median and a tenth of all time; the other rules leave "
    "it aside",
    window=AVERAGED,
    sentence="Step {step} is left aside: it took {time_s:seconds}, {ratio:times} the median, above all {stage:inside}.",
)
def long_step(rows: TimeRows) -> Found | None:
    one = rows.long_step
    return Found(asdict(one), step=one.step, stage=one.stage) if one is not None else None


@rule(
    "note",
    reads=(v.GPU_UTILIZATION, v.IDLE),
    condition=f"the devices of the ranks are in use less than {whole(LEAST_GPU_USE)} of the time, and steps wait less "
    f"than {whole(IDLE_SHARE)}",
    window=f"all steps of the last attempt, at least {READINGS} readings of each device",
    sentence="The devices are in use {use:percent} of the time, though the steps wait for little ({idle:percent}).",
    advice="Look at what the host does between kernels, at communication, and at larger batches.",
)
def low_gpu_use(rows: TimeRows, *, limit: float = LEAST_GPU_USE) -> Found | None:
    uses = [one.use for one in rows.devices if one.use is not None and one.readings >= READINGS]
    waiting = sum(_idle(rows).values())
    if not uses or len(uses) < len(rows.devices) or waiting >= IDLE_SHARE:
        return None
    use = sum(uses) / len(uses)
    return Found({"use": use, "idle": waiting}) if use < limit else None


@rule(
    "note",
    reads=PER_STAGE,
    condition="steps have no stages, or these take no time",
    window=AVERAGED,
    sentence="No stage that takes time was recorded, so nothing can be said about where the time goes.",
    advice='Put `with otel_rl.stage("name"):` around the parts of a step.',
)
def no_stage(rows: TimeRows) -> Found | None:
    return Found() if rows.no_step is None and not _largest(rows) else None


@rule(
    "note",
    reads=PER_STAGE,
    condition="no other rule of time warns",
    window=AVERAGED,
    sentence="Nothing stands out. {first:Text} {first:takes|take} {share:percent} of a step[, {second} "
    "{second_share:percent}][; {communication:percent} of the step is communication]."
    "[ {peers:Neither rank is|No rank is} slow.]",
    is_fallback=True,
)
def largest(rows: TimeRows) -> Found | None:
    parts = _largest(rows)
    if not parts:
        return None
    first, second = parts[0], parts[1] if len(parts) > 1 else None
    communication = sum(use.communication for use in uses(rows))
    return Found(
        {
            "first": first.name,
            "share": first.share,
            "second": second.name if second else None,
            "second_share": second.share if second else None,
            "communication": communication if communication >= LEAST_COMMUNICATION else None,
            "peers": max(0, sum(row.relative_score is not None for row in rows.efficiency.ranks) - 1) or None,
        },
        first.share,
    )


def _largest(rows: TimeRows) -> list[Use]:
    return [use for use in uses(rows) if use.share >= LEAST_USE]


TIME: Final[tuple[Rule[TimeRows], ...]] = table(
    *NO_STEP,
    *SLOW_RANKS,
    slow_data,
    idle,
    *ROLLOUTS,
    around_generation,
    slower_since,
    slow_tail,
    besides_training,
    unknown_time,
    long_step,
    low_gpu_use,
    no_stage,
    largest,
)
"""In docs/findings.md in this order."""
