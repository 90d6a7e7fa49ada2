"""Where the time goes, and what would gain most: the rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.analysis.many_steps import COMM_SHARE
from otel_rl.analysis.series.level_shift import DEVIATIONS, FEWEST
from otel_rl.analysis.stragglers import STRAGGLER_RATIO
from otel_rl.findings.rollout_rules import ROLLOUTS
from otel_rl.findings.rule import Found, Rule, Value, whole
from otel_rl.findings.time_spent import SlowRanks, Timing, Use
from otel_rl.runs.format import percent

SLOW_SHARE: Final = 0.05
"""A slow rank costs at least this share of the mean step."""
CALL_S: Final = 0.01
"""Collectives are slow from this time on each: many short ones are a matter of short steps."""
AWAITED_SHARE: Final = 0.2
UNEVEN_SHARE: Final = 0.3
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

GENERATE: Final = f"{v.SAMPLE}.generate"
DOING: Final = {f"{v.SAMPLE}.tokenize": "tokenizing", f"{v.SAMPLE}.decode": "decoding"}
IDLING: Final = {
    "data": "for data",
    "queue": "for a queue",
    "pipeline": "for a neighbour in the pipeline",
    "controller": "for the driver's next call",
}


def _no_step(timing: Timing) -> Found | None:
    return Found({"sentence": timing.no_step}) if timing.no_step and not timing.goes_on else None


def _no_step_yet(timing: Timing) -> Found | None:
    return Found({"sentence": timing.no_step}) if timing.no_step and timing.goes_on else None


def _slow(applies: Callable[[SlowRanks], bool]) -> Callable[[Timing], Found | None]:
    def find(timing: Timing) -> Found | None:
        slow = timing.slow
        if slow is None or slow.share < SLOW_SHARE or not applies(slow):
            return None
        times = "own_s", "others_s", "cost_s", "share", "core_share"
        names = "rank", "stage", "are", "where", "often", "besides", "others", *times
        # the mean step of this rank: without collectives each has its own
        values: dict[str, Value] = {"who": _upper(slow.who), "step_s": slow.cost_s / slow.share}
        return Found(values | _values(slow, *names), slow.share)

    return find


def _slow_calls(timing: Timing) -> Found | None:
    calls = timing.calls
    if calls is None or calls.call_s < CALL_S:
        return None
    return Found(_values(calls, "where", "stage", "share", "call_s", "peers"), calls.share)


def _awaited(timing: Timing) -> Found | None:
    wait = timing.wait
    if wait is None or wait.rank is None or not wait.step_s:
        return None
    share = wait.longest_s / wait.step_s
    if share < AWAITED_SHARE:
        return None
    least = "" if wait.is_exact else "at least "
    values: dict[str, Value] = {"least": least, "wait_s": wait.longest_s, "share": share}
    return Found(_values(wait, "who", "rank", "reason") | values, share)


def _uneven(timing: Timing) -> Found | None:
    wait = timing.wait
    if wait is None or wait.rank is not None or wait.share < UNEVEN_SHARE:
        return None
    spread = ", now one rank, now another" if wait.is_spread else ""
    return Found({"least": "" if wait.is_exact else "at least ", "share": wait.share, "spread": spread}, wait.share)


def _data(timing: Timing) -> Found | None:
    share = timing.idle.get("data", 0.0)
    is_most = share >= max(timing.idle.values(), default=0.0) and sum(timing.idle.values()) >= IDLE_SHARE
    return _idle_for(timing, share, "data") if share and (share >= IDLE_SHARE or is_most) else None


def _idle(timing: Timing) -> Found | None:
    """Name the wait for all but what is named as a wait for data."""
    known = {"data"} if _data(timing) is not None else ()
    idle = {reason: share for reason, share in timing.idle.items() if reason not in known}
    total, reason = sum(idle.values()), max(idle, key=lambda one: idle[one], default="")
    return _idle_for(timing, total, reason) if total >= IDLE_SHARE else None


def _idle_for(timing: Timing, share: float, reason: str) -> Found:
    what = IDLING.get(reason, f"in {v.IDLE}")
    return Found({"idle_s": share * timing.step_s, "step_s": timing.step_s, "share": share, "what": what}, share)


def _around(timing: Timing) -> Found | None:
    one = timing.sampling
    if one is None or GENERATE not in one.inside:
        return None
    others = {stage: share for stage, share in one.inside.items() if stage != GENERATE}
    stage = max(others, key=lambda name: others[name], default="")
    if not stage or others[stage] < AROUND_SHARE or others[stage] * one.share < AROUND_STEP_SHARE:
        return None
    values: dict[str, Value] = {
        "sample_s": one.call_s,
        "generate_s": one.inside[GENERATE] * one.call_s,
        "what": DOING.get(stage, stage),
        "stage": stage,
        "time_s": others[stage] * one.call_s,
        "share": others[stage] * one.share,
    }
    return Found(values, others[stage] * one.share)


def _tail(timing: Timing) -> Found | None:
    """Name the fewest requests that hold up the steps far longer than as many others do."""
    for tail in sorted(timing.tails, key=lambda one: one.slowest):
        if tail.step_share >= TAIL_STEP_SHARE and tail.share >= TAIL_RATIO * tail.slowest:
            values = {"slowest": round(100 * tail.slowest), "share": tail.share, "step_share": tail.step_share}
            return Found(values, tail.step_share)
    return None


def _slower(timing: Timing) -> Found | None:
    one = timing.slower
    if one is None or one.after_s < SLOWER * one.before_s:
        return None
    ratio = one.after_s / one.before_s
    return Found(_values(one, "step", "before_s", "after_s", "where") | {"ratio": ratio}, 1 - 1 / ratio)


def _besides(timing: Timing) -> Found | None:
    one = next((use for use in timing.uses if use.share - use.communication >= BESIDES.get(use.name, 2.0)), None)
    if one is None:
        return None
    return Found({"what": _upper(one.takes), "share": one.share}, one.share - one.communication)


def _other(timing: Timing) -> Found | None:
    if timing.other < OTHER_SHARE or timing.median_s < TINY_STEP_S:
        return None
    return Found({"share": timing.other}, timing.other)


def _long(timing: Timing) -> Found | None:
    one = timing.long
    if one is None:
        return None
    return Found(_values(one, "step", "time_s", "ratio", "stage"))


def _no_stage(timing: Timing) -> Found | None:
    return Found() if not timing.no_step and not _uses(timing) else None


def _largest(timing: Timing) -> Found | None:
    uses = _uses(timing)
    if timing.no_step or not uses:
        return None
    slow = {2: " Neither rank is slow."}.get(timing.num_ranks, " No rank is slow." if timing.num_ranks > 2 else "")
    first, *rest = uses
    second = f", {rest[0].name} {percent(rest[0].share)}" if rest else ""
    communication = sum(use.communication for use in timing.uses)
    if communication >= LEAST_COMMUNICATION:
        second += f"; {percent(communication)} of the step is communication"
    values: dict[str, Value] = {"first": _upper(first.takes), "share": first.share, "second": second, "slow": slow}
    return Found({**values, "second_share": rest[0].share if rest else 0.0}, first.share)


def _uses(timing: Timing) -> Sequence[Use]:
    return [use for use in timing.uses if use.share >= LEAST_USE] if any(use.share for use in timing.uses) else ()


def _values(of: object, *names: str) -> dict[str, Value]:
    return {name: getattr(of, name) for name in names}


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


COSTS: Final = f"and that costs at least {whole(SLOW_SHARE)} of the mean step"
IDLES: Final = f"`rl.idle` takes at least {whole(IDLE_SHARE)} of the step time"
SLOW: Final = (
    "own time {own_s:seconds} against {others_s:seconds}), which costs {cost_s:seconds} of {step_s:seconds} per step"
    "{besides}"
)
PER_STAGE: Final = ("stages of every rank",)
AVERAGED: Final = "the averaged steps"
SLOW_RANK: Final = ("starved_rank", "slow_rank", "slow_stage")
"""While one rank is slow, the others are in collectives, and wait."""
TIME: Final[tuple[Rule[Timing], ...]] = (
    Rule(
        name="no_step",
        severity="warning",
        reads=(v.LOOP,),
        condition="no step is finished, and none will be: why, and what to do",
        window="all that was recorded",
        find=_no_step,
        sentence="{sentence}",
    ),
    Rule(
        name="no_step_yet",
        severity="note",
        reads=(v.LOOP,),
        condition="no step is finished yet, but the run goes on",
        window="all that was recorded",
        find=_no_step_yet,
        sentence="{sentence}",
    ),
    Rule(
        name="starved_rank",
        severity="warning",
        reads=(v.CPU_TIME, *PER_STAGE),
        condition=f"a rank is slow in most of its stages by time and gets at most 1 / {STRAGGLER_RATIO} of the core "
        f"that its peers get, {COSTS}",
        window=AVERAGED,
        find=_slow(lambda slow: slow.is_everywhere and slow.is_starved),
        sentence=f"{{who}} {{are}} slower in almost everything ({SLOW} ({{share:percent}}). "
        "It got {core_share:percent} of a core while it worked.{others}",
        advice="See what else runs on the cores of this rank: other programs, or other threads of its own.",
    ),
    Rule(
        name="slow_rank",
        severity="warning",
        reads=PER_STAGE,
        condition=f"a rank is slow in most of its stages by time, {COSTS}",
        window=AVERAGED,
        find=_slow(lambda slow: slow.is_everywhere and not slow.is_starved),
        sentence=f"{{who}} {{are}} slower in almost everything ({SLOW} ({{share:percent}}).{{others}}",
        advice="Compare its machine and its share of the work with the other ranks'.",
    ),
    Rule(
        name="slow_stage",
        severity="warning",
        reads=PER_STAGE,
        condition=f"a rank is slow in some stages, {COSTS}",
        window=AVERAGED,
        find=_slow(lambda slow: not slow.is_everywhere),
        sentence=f"{{who}} {{are}} slower in {{where}}{{often}} ({SLOW} ({{share:percent}}).{{others}}",
        advice="See what this rank does differently there: its data, its files, its hardware.",
    ),
    Rule(
        name="slow_communication",
        severity="warning",
        reads=(v.COMM_COUNT, v.COMM_TIME),
        condition=f"the collectives of a stage take at least {whole(COMM_SHARE)} of the step on every rank without "
        f"waiting, and at least {CALL_S * 1000:.0f} ms each; no rank is slow",
        window=AVERAGED,
        find=_slow_calls,
        sentence="Communication holds the run back: collectives take {where} per step on every rank{peers} "
        "({share:percent}), {call_s:seconds} each.",
        advice="Look at the network between the ranks, and at the size of what they exchange.",
        silenced_by=SLOW_RANK,
    ),
    Rule(
        name="awaited_rank",
        severity="warning",
        reads=(v.COMM_TIME, *PER_STAGE),
        condition=f"the others wait at least {whole(AWAITED_SHARE)} of the step for the same ranks, which are not "
        "slow in any stage that all have",
        window=AVERAGED,
        find=_awaited,
        sentence="The other ranks wait {least}{wait_s:seconds} per step ({share:percent}) for {who}{reason}.",
        advice="Give this work to all ranks, or do it in the background.",
        silenced_by=SLOW_RANK,
    ),
    Rule(
        name="uneven_ranks",
        severity="warning",
        reads=(v.COMM_TIME,),
        condition=f"the ranks wait at least {whole(UNEVEN_SHARE)} of the step time for each other, and not for the "
        "same again and again",
        window=AVERAGED,
        find=_uneven,
        sentence="The ranks wait {least}{share:percent} of the step time for the slowest of them{spread}.",
        advice="Give the ranks equal work: batches of equal length, or one queue for all.",
        silenced_by=SLOW_RANK,
    ),
    Rule(
        name="slow_data",
        severity="warning",
        reads=(v.IDLE, v.IDLE_REASON),
        condition=f"waiting for data takes at least {whole(IDLE_SHARE)} of the step time, also inside other stages; "
        f"or {IDLES}, above all for data",
        window=AVERAGED,
        find=_data,
        sentence="The data loader holds the run back: {idle_s:seconds} of {step_s:seconds} per step wait for the next "
        "batch ({share:percent}).",
        advice="Use more workers, prefetch, or prepare the data before the training.",
    ),
    Rule(
        name="idle",
        severity="warning",
        reads=(v.IDLE, v.IDLE_REASON),
        condition=f"{IDLES}, without what `slow_data` names",
        window=AVERAGED,
        find=_idle,
        sentence="Waiting holds the run back: {idle_s:seconds} of {step_s:seconds} per step are spent waiting {what} "
        "({share:percent}).",
        advice="Look at who makes what is waited for, and whether that can begin earlier.",
        silenced_by=("late_samples",),
    ),
    *ROLLOUTS,
    Rule(
        name="around_generation",
        severity="warning",
        reads=(v.SAMPLE, GENERATE, *DOING),
        condition=f"a stage inside `rl.sample` other than `rl.sample.generate` takes at least {whole(AROUND_SHARE)} "
        f"of it, and {whole(AROUND_STEP_SHARE)} of the step",
        window=AVERAGED,
        find=_around,
        sentence="rl.sample takes {sample_s:seconds}, of which generating {generate_s:seconds} and {what} "
        "{time_s:seconds} ({share:percent} of the step).",
        advice="Speed up this part first: the engine is not what takes the time.",
    ),
    Rule(
        name="slower_since",
        severity="warning",
        reads=(v.STEP_TIME, *PER_STAGE),
        condition=f"from one step on, steps take at least {SLOWER} times as long as before, at once and by more than "
        f"{DEVIATIONS:.0f} times their scatter (medians; Pettitt's test)",
        window=f"the averaged steps of the last attempt, about {FEWEST} or more before and after, in long runs "
        "about the square root of their number",
        find=_slower,
        sentence="Steps take {ratio:times} as long since step {step} ({before_s:seconds} to {after_s:seconds}), above "
        "all {where}.",
        advice="Look at what changed then: other programs on the machine, longer prompts or responses, a file system.",
    ),
    Rule(
        name="slow_tail",
        severity="warning",
        reads=(v.SAMPLE,),
        condition=f"the slowest 1, 5 or 10 % of the requests alone take at least {whole(TAIL_STEP_SHARE)} of the "
        f"step, and of the rollout at least {TAIL_RATIO:.0f} times their number, and answers have one turn",
        window=AVERAGED,
        find=_tail,
        sentence="The slowest {slowest} % of the responses alone take {share:percent} of the rollout, "
        "{step_share:percent} of the step.",
        advice="Lower the limit of the length, or let other work begin before the last responses end.",
        silenced_by=("held_step", "beside_turns"),
    ),
    Rule(
        name="besides_training",
        severity="warning",
        reads=(v.EVALUATE, v.CHECKPOINT, v.SYNC),
        condition="evaluations or checkpoints take at least half of the step time, or new weights for the engine 30 %, "
        "without their collectives",
        window=AVERAGED,
        find=_besides,
        sentence="{what} {share:percent} of the step time.",
        advice="Do it less often, make it smaller, or do it in the background.",
    ),
    Rule(
        name="unknown_time",
        severity="warning",
        reads=(v.OTHER,),
        condition=f"at least {whole(OTHER_SHARE)} of the step time lies under no stage, and the median step takes at "
        f"least {TINY_STEP_S * 1000:.0f} ms",
        window=AVERAGED,
        find=_other,
        sentence="{share:percent} of the step time lies under no stage.",
        advice='Put `with otel_rl.stage("name"):` around what runs there.',
    ),
    Rule(
        name="long_step",
        severity="note",
        reads=(v.STEP_TIME,),
        condition="a single step took at least five times the median and a tenth of all time; the other rules leave "
        "it aside",
        window=AVERAGED,
        find=_long,
        sentence="Step {step} is left aside: it took {time_s:seconds}, {ratio:times} the median, above all in {stage}.",
    ),
    Rule(
        name="no_stage",
        severity="note",
        reads=PER_STAGE,
        condition="steps have no stages, or these take no time",
        window=AVERAGED,
        find=_no_stage,
        sentence="No stage that takes time was recorded, so nothing can be said about where the time goes.",
        advice='Put `with otel_rl.stage("name"):` around the parts of a step.',
    ),
    Rule(
        name="largest",
        severity="note",
        reads=PER_STAGE,
        condition="no other rule of time warns",
        window=AVERAGED,
        find=_largest,
        sentence="Nothing stands out. {first} {share:percent} of a step{second}.{slow}",
        is_fallback=True,
    ),
)
"""In docs/findings.md in this order."""
