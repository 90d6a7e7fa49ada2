"""The rules of runs with a driver: slow rewards and tools, late samples, long trajectories, what grows, what starts."""

from __future__ import annotations

from typing import Final

from otel_rl import vocabulary as v
from otel_rl.findings.rule import Found, Rule, Value, whole
from otel_rl.findings.time_spent import Timing
from otel_rl.runs.format import seconds

BESIDE_SHARE: Final = 0.3
"""From this part of a trajectory on its rewards, or a tool, are worth a sentence."""
BESIDE_STEP_SHARE: Final = 0.1
LATE_SHARE: Final = 0.1
HELD_SHARE: Final = 0.05
SLOW_SHARE: Final = 0.05
GROWN_SHARE: Final = 0.05
GROWN_RATIO: Final = 1.5
AVERAGED: Final = "the averaged steps"


def _beside_turns(timing: Timing) -> Found | None:
    one = timing.beside_turns
    if one is None or one.time_s < BESIDE_SHARE * one.trajectory_s or one.share < BESIDE_STEP_SHARE:
        return None
    values: dict[str, Value] = {"stage": one.stage, "time_s": one.time_s, "trajectory_s": one.trajectory_s}
    return Found(values | {"share": one.share}, one.share)


def _late(timing: Timing) -> Found | None:
    late = timing.late
    if late is None or late.share < LATE_SHARE:
        return None
    # Without a weight: a poll is a habit of the framework, and all that a user can change comes first.
    return Found({"late_s": late.late_s, "share": late.share, "asks": late.asks})


def _held(timing: Timing) -> Found | None:
    one = timing.held
    if one is None or one.of_all < HELD_SHARE:
        return None
    inside = f"; {one.inside} took {seconds(one.inside_s)} of it" if one.inside else ""
    values: dict[str, Value] = {
        "which": one.which[:1].upper() + one.which[1:],
        "step": one.step,
        "held_s": one.held_s,
        "share": one.share,
        "inside": inside,
        "others": one.others,
    }
    return Found(values, one.share)


def _slow_process(timing: Timing) -> Found | None:
    one = timing.slow_process
    if one is None or one.share < SLOW_SHARE:
        return None
    values: dict[str, Value] = {
        "who": one.who[:1].upper() + one.who[1:],
        "others": one.others,
        "stage": one.stage,
        "own_s": one.own_s,
        "others_s": one.others_s,
        "cost_s": one.cost_s,
        "share": one.share,
    }
    return Found(values, one.share)


def _growing(timing: Timing) -> Found | None:
    one = timing.growing
    if one is None or one.share < GROWN_SHARE or one.last_s < GROWN_RATIO * one.first_s:
        return None
    values: dict[str, Value] = {"stage": one.stage, "steps": one.steps, "first_s": one.first_s, "last_s": one.last_s}
    return Found(values | {"share": one.share}, one.share)


def _starting(timing: Timing) -> Found | None:
    one = timing.starting
    return None if one is None else Found({"step": one.step, "time_s": one.time_s, "share": one.share})


ROLLOUTS: Final[tuple[Rule[Timing], ...]] = (
    Rule(
        name="beside_turns",
        severity="warning",
        reads=(v.IDLE, v.TRAJECTORY, v.REWARD, v.EXECUTE_TOOL),
        condition=f"while a driver waits for rollouts, rewards or one tool take at least {whole(BESIDE_SHARE)} of the "
        f"mean trajectory, and so at least {whole(BESIDE_STEP_SHARE)} of the step time",
        window=AVERAGED,
        find=_beside_turns,
        sentence="{stage} takes {time_s:seconds} of a trajectory of {trajectory_s:seconds}, for which the step waits "
        "({share:percent} of it).",
        advice="Speed up this part first, or call it for more trajectories at once: the servers are not what takes the "
        "time.",
    ),
    Rule(
        name="late_samples",
        severity="warning",
        reads=(v.IDLE, v.TRAJECTORY),
        condition=f"after the last trajectory of a step has ended, a driver waits for the samples for at least "
        f"{whole(LATE_SHARE)} of the step time",
        window=AVERAGED,
        find=_late,
        sentence="The step waits {late_s:seconds} ({share:percent}) for its samples after the last rollout has ended"
        "{asks}.",
        advice="Let the driver look more often if it polls, or see what it does after the last rollout.",
    ),
    Rule(
        name="held_step",
        severity="warning",
        reads=(v.IDLE, v.TRAJECTORY),
        condition="after all trajectories have ended but those that take at least three times the median, the driver "
        f"waits for these for a tenth of the step; such waits are {whole(HELD_SHARE)} of all steps or more",
        window=AVERAGED,
        find=_held,
        sentence="{which} held step {step} for {held_s:seconds} ({share:percent} of it){inside}.{others}",
        advice="Look at this trajectory: how long it is, its tools, its reward and its server.",
    ),
    Rule(
        name="slow_process",
        severity="warning",
        reads=("stages of agent loops, servers and reward workers",),
        condition="a process takes 1.5 times as long for its calls of a stage as the others of its role (medians; "
        f"nearly all of its calls are longer), and that may cost {whole(SLOW_SHARE)} of the mean step or more",
        window="all steps",
        find=_slow_process,
        sentence="{who} takes {own_s:seconds} for {stage}, {others} {others_s:seconds}: up to {cost_s:seconds} "
        "of a step ({share:percent}).",
        advice="See what this process does differently: its machine, its share of the work, a call that blocks it.",
    ),
    Rule(
        name="growing_stage",
        severity="warning",
        reads=("stages of the driver",),
        condition=f"a stage of a driver takes longer from step to step: {GROWN_RATIO} times in the end, and "
        f"{whole(GROWN_SHARE)} of the mean step more",
        window="the averaged steps of the last attempt, five or more",
        find=_growing,
        sentence="{stage} takes longer from step to step: {first_s:seconds} at first, {last_s:seconds} in the end, in "
        "{steps:plural step}.",
        advice="Find what this stage keeps or repeats from step to step.",
    ),
    Rule(
        name="starting_agents",
        severity="note",
        reads=(v.SAMPLE_SUBMIT,),
        condition="the first step hands out its prompts for at least 2 s and five times as long as the others",
        window="the steps of the last attempt",
        find=_starting,
        sentence="{time_s:seconds} of step {step} are rl.sample.submit ({share:percent}): the agent loops start there, "
        "once.",
    ),
)
