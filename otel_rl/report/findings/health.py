"""Whether a run is healthy: the rules of HEALTH."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from otel_rl import vocabulary as v
from otel_rl.report.data.details import OpenStageRow
from otel_rl.report.data.finding import Value
from otel_rl.report.data.health_rows import ActionRow, HealthRows
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import RankStep, StepDisagreement
from otel_rl.report.findings.causes import seen_in
from otel_rl.report.findings.endings import ENDINGS
from otel_rl.report.findings.memory import MEMORY
from otel_rl.report.findings.mishaps import MISHAPS
from otel_rl.report.findings.rule import Found, Rule, rank_name, rule, table, whole
from otel_rl.runs.format import count, plural
from otel_rl.stalls.sentences import ADVICE

LATE_S: Final = 1.0
"""An event loop that is late by so much serves nobody meanwhile."""
OF_PROGRAMS: Final = ("13", "31", "43", "45")
"""NVIDIA's numbers of errors that a program makes, or that its end makes."""
HOT: Final = {
    "thermal_software": "its temperature", "thermal_hardware": "its temperature", "power_brake": "its power supply",
}  # fmt: skip
"""Reasons of a lowered clock that are faults of the machine; a power cap is usual at full load."""
OFTEN: Final = 0.1
"""The share of readings from which on a device is slowed down often."""
READINGS: Final = 12
"""The fewest readings that are judged: a minute of them."""
CALLERS_WAITS: Final = (f"{v.IDLE} queue", f"{v.IDLE} controller")
"""Waits for what other processes do."""
WRONG: Final = ("failed", "no_value")
OF_ACTIONS: Final[dict[str, Any]] = {"reads": (v.ACTIONS,), "window": "the last attempt"}
DOES: Final = {"checkpoint": "saved a checkpoint", "stop": "stopped the training", "call": "called"}

OTHER_NUMBERS: Final = "what {who} calls {step} is {others}"


@rule(
    "alarm",
    reads=(v.STALL_ACTIVE,),
    condition="a stage holds the run up for longer than docs/stalls.md allows, or did when its process ended",
    window="now, or the end",
    sentence="{chain}",
    advice=ADVICE,
)
def stalled(rows: HealthRows) -> Found | None:
    """Find the longest stall that goes on, or ended with its process."""
    longest = max((row for row in rows.stalls if not row.is_over), key=lambda row: row.age_s, default=None)
    if longest is None:
        return None
    values: dict[str, Value | None] = {"chain": longest.chain, "age": longest.age_s}
    return Found(values, longest.age_s, step=longest.step, rank=Rank(longest.role, longest.rank), stage=longest.stage)


@rule(
    "alarm",
    reads=(),
    condition="a living process is in a stage for 10 s and three times as long as its longest call that ended",
    window="now",
    sentence="{who:Text} may hang[, like {others} more]: in {where} for {open:seconds}; the longest call that ended "
    "took {longest:seconds}.",
    advice="Run `otel-rl stacks` to see where it is in the code.",
    silenced_by=("stalled",),
)
def hanging(rows: HealthRows) -> Found | None:
    """Find the process for which others wait: one that waits for nobody itself, and for the longest time."""
    hanging = [row for row in rows.open_stages if row.is_hanging]
    if not hanging:
        return None
    row = min(hanging, key=lambda row: (_waits(row), -row.open_s))
    return Found(
        {
            "who": rank_name(Rank(row.role, row.rank), rows.ranks),
            "others": len(hanging) - 1 or None,
            "where": seen_in(row),
            "open": row.open_s,
            "longest": row.longest_s or 0.0,
        },
        row.open_s,
        step=row.iteration,
        rank=Rank(row.role, row.rank),
        stage=row.stage,
    )


def _waits(row: OpenStageRow) -> bool:
    """Return whether it waits for another rank in a collective, or for what other processes do."""
    return row.collective is not None or row.stage in CALLERS_WAITS


@rule(
    "warning",
    reads=(v.STALL_ACTIVE,),
    condition="a stage held the run up for longer than docs/stalls.md allows, and ended by itself",
    window="the last attempt",
    sentence="The run stood still for {lost:seconds}[ in {stalls} stalls; the longest]: {stage} of {who}[, step {step}]"
    "[, for {longest:seconds}].",
    advice="Read the stacks in `otel-rl report --json`.",
)
def stood_still(rows: HealthRows) -> Found | None:
    over = [row for row in rows.stalls if row.is_over]
    if not over:
        return None
    longest, lost_s, is_one = max(over, key=lambda row: row.age_s), sum(row.age_s for row in over), len(over) == 1
    return Found(
        {
            "lost": lost_s,
            "stalls": None if is_one else len(over),
            "stage": longest.stage,
            "who": rank_name(Rank(longest.role, longest.rank), rows.ranks),
            "step": longest.step,
            "longest": None if is_one else longest.age_s,
        },
        lost_s,
        step=longest.step,
        rank=Rank(longest.role, longest.rank),
        stage=longest.stage,
    )


@rule(
    "warning",
    reads=(v.WORLD_SIZE,),
    condition="ranks of the last attempt have no journal here",
    window="the last attempt",
    sentence="Nothing was read of {missing} of {ranks:plural rank}: what is said is about the others.",
    advice="Copy the journals of the other nodes into the folder of the run.",
)
def missing_ranks(rows: HealthRows) -> Found | None:
    missing = rows.missing_ranks
    return Found({"missing": missing, "ranks": len(rows.ranks) + missing}) if missing else None


@rule(
    "warning",
    reads=(v.ITERATION,),
    condition="ranks call the same step by different numbers",
    window="all steps",
    sentence=f"Ranks call {{steps}} of {{compared:plural step}} by different numbers: {OTHER_NUMBERS}.",
    advice="Ranks are compared by these numbers: begin all with the same one.",
)
def steps_disagree(rows: HealthRows) -> Found | None:
    if not rows.disagreements:
        return None
    steps, compared = (sum(of) for of in zip(*((row.steps, row.compared) for row in rows.disagreements), strict=True))
    values = other_numbers(rows.disagreements[0], lambda rank: rank_name(rank, rows.ranks))
    first = rows.disagreements[0].first
    return Found({"steps": steps, "compared": compared, **values}, step=min(one.iteration for one in first))


def other_numbers(row: StepDisagreement, name: Callable[[Rank], str]) -> dict[str, Value]:
    """Return the values of `OTHER_NUMBERS`: what a step is called on which ranks."""
    ((usual, _),) = Counter(map(_step_name, row.first)).most_common(1)
    names = {name(Rank(row.role, one.rank)): _step_name(one) for one in row.first}
    return {
        "who": next(who for who, step in names.items() if step == usual),
        "step": usual,
        "others": [f"{step} on {who}" for who, step in names.items() if step != usual],
    }


def _step_name(one: RankStep) -> str:
    return f"step {one.iteration}" if one.loop == "train" else f"step {one.iteration} of {one.loop}"


@rule(
    "warning",
    reads=(v.EVENT_LOOP_LAG,),
    condition=f"a call waited {LATE_S:.0f} s or longer in an asyncio event loop, if that is measured",
    window="inside the steps of the last attempt",
    sentence="The event loop of {who}[, like {others} more,] was late by up to {lag:seconds}, in step {step}.",
    advice="Find the call that blocks it: `otel-rl stacks RUN` while it does. Move it to a thread.",
)
def event_loop_late(rows: HealthRows) -> Found | None:
    latest = max(rows.late_loops, key=lambda row: row.lag_s, default=None)
    if latest is None:
        return None
    others = len(rows.late_loops) - 1 or None
    values = {"who": rank_name(latest.rank, rows.ranks), "others": others, "lag": latest.lag_s, "step": latest.step}
    return Found(values, latest.lag_s, step=latest.step, rank=latest.rank)


@rule(
    "warning",
    reads=(v.XID, v.HW_ERRORS),
    condition="a device of a rank has critical errors (NVIDIA's XID, but those that programs make), or errors of its "
    "memory that could not be corrected",
    window="since the sidecar began",
    sentence="The device of {who} has errors: {errors}.",
    advice="Look at `dmesg` and `nvidia-smi -q` of its node; have the device reset or replaced.",
)
def device_errors(rows: HealthRows) -> Found | None:
    for one in rows.devices:
        xids = {code: number for code, number in one.xids.items() if code not in OF_PROGRAMS}
        errors = [f"XID {code}" + (f" ({count(number)} times)" if number > 1 else "") for code, number in xids.items()]
        if one.uncorrected:
            errors.append(f"{count(one.uncorrected)} of its memory that could not be corrected")
        if errors:
            who = [rank_name(rank, rows.ranks) for rank in one.ranks]
            weight = sum(xids.values()) + one.uncorrected
            return Found({"who": who, "errors": errors}, weight, rank=next(iter(one.ranks), None))
    return None


@rule(
    "warning",
    reads=(v.THROTTLE,),
    condition=f"the clock of a rank's device is lowered for its temperature or power supply in {whole(OFTEN)} of the "
    "readings",
    window=f"the steps of the last attempt, at least {READINGS} readings",
    sentence="The device of {who} is slowed down for {why} in {share:percent} of the readings.",
    advice="Look at the cooling and the power supply of its node.",
)
def device_throttled(rows: HealthRows, *, limit: float = OFTEN) -> Found | None:
    found = [
        (share, HOT[why], one.ranks)
        for one in rows.devices
        for why, share in one.throttled.items()
        if why in HOT and share >= limit and one.readings >= READINGS
    ]
    if not found:
        return None
    share, why, ranks = max(found, key=lambda row: row[0])
    who = [rank_name(rank, rows.ranks) for rank in ranks]
    return Found({"who": who, "why": why, "share": share}, share, rank=next(iter(ranks), None))


@rule(
    "warning",
    condition="an action of docs/actions.md failed, or its metric was no number or never came",
    sentence="The action {name} [failed {failed}][decided nothing {without}][, like {others:plural other}]: {what}",
    advice="Training goes on as without it. docs/actions.md says what each action needs.",
    **OF_ACTIONS,
)
def action_failed(rows: HealthRows) -> Found | None:
    wrong = sorted((one for one in rows.actions if one.outcome in WRONG), key=lambda one: WRONG.index(one.outcome))
    if not wrong:
        return None
    first, times = wrong[0], plural(wrong[0].times, "time")
    return Found(
        {
            "name": first.name,
            "failed": times if first.outcome == "failed" else None,
            "without": times if first.outcome != "failed" else None,
            "others": len({one.name for one in wrong}) - 1 or None,
            "what": first.what,
        },
        first.times,
    )


@rule(
    "note",
    condition="actions of docs/actions.md were done or rehearsed",
    sentence="{what:Text}.",
    **OF_ACTIONS,
)
def acted(rows: HealthRows) -> Found | None:
    done = [one for one in rows.actions if one.outcome not in WRONG]
    has_stopped = any((one.kind, one.outcome) == ("stop", "done") for one in done)  # then it comes first
    return Found({"what": [_in_words(one) for one in done]}, weight=float(has_stopped)) if done else None


def _in_words(row: ActionRow) -> str:
    would = "would have " if row.outcome == "rehearsed" else ""
    times = f" {plural(row.times, 'time')}, last" if row.times > 1 else ""
    return f"the action {row.name} {would}{DOES.get(row.kind, row.kind)}{times} after step {row.step}"


HEALTH: Final[tuple[Rule[HealthRows], ...]] = table(
    stalled,
    hanging,
    *ENDINGS,
    stood_still,
    *MEMORY,
    missing_ranks,
    steps_disagree,
    *MISHAPS,
    action_failed,
    acted,
    event_loop_late,
    device_errors,
    device_throttled,
)
"""In docs/findings.md in this order."""
