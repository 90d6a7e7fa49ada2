"""The rules of runs with a driver: slow rewards and tools, late samples, long trajectories, what grows, what starts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import asdict
from operator import itemgetter
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.report.data.roles import which
from otel_rl.report.data.time_rows import TimeRows
from otel_rl.report.findings.rule import Found, rule, table, whole
from otel_rl.runs.role_words import role_in_words

AVERAGED: Final = "the averaged steps"
QUEUE: Final = f"{v.IDLE} queue"
BESIDE: Final = (v.REWARD, f"{v.EXECUTE_TOOL} ")
"""How the names of what a trajectory calls beside its turns begin."""
POLL: Final = v.SETTINGS_POLL.removeprefix(v.SETTINGS)
SEVERAL_TURNS: Final = 1.5
BESIDE_SHARE: Final = 0.3
"""From this part of a trajectory on its rewards, or a tool, are worth a sentence."""
BESIDE_STEP_SHARE: Final = 0.1
LATE_SHARE: Final = 0.1
HELD_SHARE: Final = 0.05
SLOW_SHARE: Final = 0.05
GROWN_SHARE: Final = 0.05
GROWN_RATIO: Final = 1.5
STARVED: Final = 0.2
"""With such a share of waits the other side is clearly slower."""
FED: Final = 0.05
"""With such a share, it is not."""


def generating_share(rows: TimeRows, stages: Collection[str] = (QUEUE,)) -> float:
    """Return the share of the step in which a driver waits in these stages while rollouts go on; 0 without a driver."""
    if rows.trajectories is None or not rows.all_step_s:
        return 0.0
    waiting, generating_s = sum(map(rows.share_of, stages)), rows.trajectories.generating_s
    return waiting if generating_s is None else min(waiting, generating_s / rows.all_step_s)


def has_turns(rows: TimeRows) -> bool:
    """Return whether trajectories have several turns: then the last requests of a rollout are not the slowest."""
    calls: Counter[str] = Counter()
    for row in (row for role in rows.roles for row in role.stages):
        calls[row.stage] += row.calls
    return calls[v.SAMPLE_TURN] > SEVERAL_TURNS * calls[v.TRAJECTORY]


@rule(
    "warning",
    reads=(v.IDLE, v.TRAJECTORY, v.REWARD, v.EXECUTE_TOOL),
    condition=f"while a driver waits for rollouts, rewards or one tool take at least {whole(BESIDE_SHARE)} of the "
    f"mean trajectory, and so at least {whole(BESIDE_STEP_SHARE)} of the step time",
    window=AVERAGED,
    sentence="{stage} takes {time_s:seconds} of a trajectory of {trajectory_s:seconds}, for which the step waits "
    "({share:percent} of it).",
    advice="Speed up this part first, or call it for more trajectories at once: the servers are not what takes the "
    "time.",
)
def beside_turns(rows: TimeRows, *, limit: float = BESIDE_SHARE, step_limit: float = BESIDE_STEP_SHARE) -> Found | None:
    """Find what takes most of the trajectories beside turns: rewards together, or a tool."""
    called = [row for role in rows.roles if not role.is_rank for row in role.stages]
    whole_s = sum(row.total_s for row in called if row.stage == v.TRAJECTORY)
    count = sum(row.calls for row in called if row.stage == v.TRAJECTORY)
    times_s: defaultdict[str, float] = defaultdict(float)
    for row in called:
        if row.stage.startswith(BESIDE):
            times_s[v.REWARD if row.stage.startswith(v.REWARD) else row.stage] += row.total_s
    stage, time_s = max(times_s.items(), key=itemgetter(1), default=("", 0.0))
    if not whole_s or time_s < limit * whole_s:
        return None
    # the driver's wait is divided as the trajectory is
    share = min(1.0, time_s / whole_s) * generating_share(rows, (QUEUE, v.SAMPLE))
    if share < step_limit:
        return None
    times = {"time_s": time_s / count, "trajectory_s": whole_s / count}
    return Found({"stage": stage, **times, "share": share}, share, stage=stage)


@rule(
    "warning",
    reads=(v.IDLE, v.TRAJECTORY),
    condition="after the last trajectory of a step has ended, a driver waits for the samples for at least "
    f"{whole(LATE_SHARE)} of the step time",
    window=AVERAGED,
    sentence="The step waits {late_s:seconds} ({share:percent}) for its samples after the last rollout has ended"
    "[: the driver looks for them every {poll_s:g} s (poll_interval)].",
    advice="Let the driver look more often if it polls, or see what it does after the last rollout.",
)
def late_samples(rows: TimeRows, *, limit: float = LATE_SHARE) -> Found | None:
    late_s = rows.trajectories.late_s if rows.trajectories is not None else None
    if not late_s or not rows.all_step_s or late_s < limit * rows.all_step_s:
        return None
    # Without a weight: a poll is a habit of the framework, and all that a user can change comes first.
    return Found({"late_s": late_s, "share": late_s / rows.all_step_s, "poll_s": rows.settings.get(POLL)})


@rule(
    "warning",
    reads=(v.IDLE, v.TRAJECTORY),
    condition="after all trajectories have ended but those that take at least three times the median, the driver "
    f"waits for these for a tenth of the step; such waits are {whole(HELD_SHARE)} of all steps or more",
    window=AVERAGED,
    sentence="{trajectory:Text}[, with {others} more,] held step {step} for {held_s:seconds} "
    "({share:percent} of it)[; {inside} took {inside_s:seconds} of it].[ {steps:plural more step} had such a one.]",
    advice="Look at this trajectory: how long it is, its tools, its reward and its server.",
)
def held_step(rows: TimeRows, *, limit: float = HELD_SHARE) -> Found | None:
    """Find the trajectory that held a step longest."""
    held = rows.trajectories.held if rows.trajectories is not None else []
    if not held or sum(row.held_s for row in held) < limit * rows.all_steps_s:
        return None
    longest = held[0]
    return Found(
        {
            "trajectory": which(longest.sample, longest.group),
            "others": longest.trajectories - 1 or None,
            "step": longest.step,
            "held_s": longest.held_s,
            "share": longest.share,
            "inside": longest.inside,
            "inside_s": longest.inside_s,
            "steps": len(held) - 1 or None,
        },
        longest.share,
        step=longest.step,
        stage=longest.inside,
    )


@rule(
    "warning",
    reads=("stages of agent loops, servers and reward workers",),
    condition="a process takes 1.5 times as long for its calls of a stage as the others of its role (medians; "
    f"nearly all of its calls are longer), and that may cost {whole(SLOW_SHARE)} of the mean step or more",
    window="all steps",
    sentence="{role:Text} {rank} takes {own_s:seconds} for {stage}, {peers:{role} {peer}|the other {role}s} "
    "{others_s:seconds}: up to {cost_s:seconds} of a step ({share:percent}).",
    advice="See what this process does differently: its machine, its share of the work, a call that blocks it.",
)
def slow_process(rows: TimeRows, *, limit: float = SLOW_SHARE) -> Found | None:
    slow = rows.slow_process
    if slow is None or slow.share < limit:
        return None
    return Found(
        {
            "role": role_in_words(slow.rank.role),
            "rank": slow.rank.rank,
            "peers": len(slow.peers),
            "peer": slow.peers[0].rank,
            "stage": slow.stage,
            "own_s": slow.own_s,
            "others_s": slow.others_s,
            "cost_s": slow.cost_s,
            "share": slow.share,
        },
        slow.share,
        rank=slow.rank,
        stage=slow.stage,
    )


@rule(
    "warning",
    reads=("stages of the driver", v.SYNC),
    condition="a stage of a driver, or without one the handing over of weights, takes longer from step to step: "
    f"{GROWN_RATIO} times in the end, and {whole(GROWN_SHARE)} of the mean step more",
    window="the averaged steps of the last attempt, five or more",
    sentence="{stage} takes longer from step to step: {first_s:seconds} at first, {last_s:seconds} in the end, in "
    "{steps:plural step}.",
    advice="Find what this stage keeps or repeats from step to step.",
)
def growing_stage(rows: TimeRows, *, times: float = GROWN_RATIO, limit: float = GROWN_SHARE) -> Found | None:
    row = rows.growing
    if row is None or row.share < limit or row.last_s < times * row.first_s:
        return None
    return Found(asdict(row), row.share, stage=row.stage)


@rule(
    "note",
    reads=(v.SAMPLE_SUBMIT,),
    condition="the first step hands out its prompts for at least 2 s and five times as long as the others",
    window="the steps of the last attempt",
    sentence="{time_s:seconds} of step {step} are rl.sample.submit ({share:percent}): the agent loops start there, "
    "once.",
)
def starting_agents(rows: TimeRows) -> Found | None:
    first = rows.first_submit
    return Found(asdict(first), step=first.step, stage=v.SAMPLE_SUBMIT) if first is not None else None


@rule(
    "note",
    reads=(v.IDLE, v.GROUPS, v.SAMPLE_LAG),
    condition=f"rollouts outlive their step, and the driver waits for them for {whole(STARVED)} of the step or more",
    window=AVERAGED,
    sentence="Training waits for rollouts ({share:percent} of the step); {finished:.3g} finished prompts are in the "
    "buffer, {running:.3g} are being sampled (medians).",
    advice="Use more or faster rollout servers, or let them sample further ahead.",
)
def training_starves(rows: TimeRows, *, limit: float = STARVED) -> Found | None:
    share = generating_share(rows)
    return Found({**asdict(rows.buffer), "share": share}) if rows.buffer is not None and share >= limit else None


@rule(
    "note",
    reads=(v.IDLE, v.GROUPS, v.SAMPLE_LAG),
    condition=f"rollouts outlive their step, the driver waits for less than {whole(FED)} of the step, and finished "
    "prompts wait for it",
    window=AVERAGED,
    sentence="Rollouts are ahead of training: {finished:.3g} finished prompts wait in the buffer, {running:.3g} are "
    "being sampled (medians).",
    advice="Give training more devices, or sample less far ahead: samples only grow older.",
)
def rollouts_starve(rows: TimeRows, *, limit: float = FED) -> Found | None:
    # a driver that never looks into a queue takes its samples elsewhere: the buffer says nothing of its waits
    if rows.buffer is None or rows.buffer.finished < 1 or not 0 < rows.share_of(QUEUE) < limit:
        return None
    return Found(asdict(rows.buffer))


ROLLOUTS: Final = table(
    beside_turns,
    late_samples,
    held_step,
    slow_process,
    growing_stage,
    starting_agents,
    training_starves,
    rollouts_starve,
)
