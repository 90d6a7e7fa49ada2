"""How a run ended, or went on after a failure: rules of HEALTH."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.report.data.finding import Value
from otel_rl.report.data.health_rows import EndedEarly, FailedRank, HealthRows
from otel_rl.report.data.ranks import Rank
from otel_rl.report.findings.causes import INTERRUPTS, by_cause, place, seen_in
from otel_rl.report.findings.rule import Found, rank_name, rule, say, table

OUT_OF_MEMORY: Final = ("OutOfMemory", "MemoryError", "out of memory")
"""One of them is in the name of the exception."""
LAST: Final = "the last step of each rank, set-up, tear-down"
WHO: Final = "{who:Text}[, like {alike} more,]"
OTHERS: Final = (
    "[; {is_after:then |}{others} failed ({errors})][{is_alone:; then | and }{killed} more {killed:was|were} killed]"
)
EARLY: Final = "{state} after {steps:plural step}[ ({who}: {error} {where})]"


@rule(
    "alarm",
    reads=(v.ERROR_TYPE,),
    condition="the first error that ended the run is one of missing memory",
    window=LAST,
    sentence=f"{WHO} ran out of memory {{where}} ({{error}}){OTHERS}.",
    advice="Make the batch or the responses smaller, or save activations: `gradient_checkpointing`.",
)
def out_of_memory(rows: HealthRows) -> Found | None:
    return _ended_with(rows, is_memory=True)


@rule(
    "alarm",
    reads=(v.ERROR_TYPE,),
    condition="the first error that ended the run is another one; that a rank is gone is no cause, but what it "
    "failed with or that it was killed",
    window=LAST,
    sentence=f"{WHO} failed with {{error}} {{where}}{OTHERS}.",
    advice="The traceback is in the output of the program.",
)
def failed(rows: HealthRows) -> Found | None:
    return _ended_with(rows, is_memory=False)


def _ended_with(rows: HealthRows, *, is_memory: bool) -> Found | None:
    ends = _ends(rows)
    if not ends or ends[0].error in INTERRUPTS or any(word in ends[0].error for word in OUT_OF_MEMORY) != is_memory:
        return None
    cause, *rest = ends
    alike = [one for one in rest if (one.error, one.stage) == (cause.error, cause.stage)]
    others = [one for one in rest if one not in alike]
    values = _failure(rows, cause, alike, len(ends)) | _others(rows, cause, others)
    return _of(cause, values | {"killed": len(rows.died) or None, "is_alone": not others}, weight=len(ends))


def _ends(rows: HealthRows) -> list[FailedRank]:
    """Return the failures that ended the run, the cause first; none if somebody died and they followed from that."""
    ends = by_cause(one for one in rows.failures if one.is_end)
    return [] if ends and ends[0].follows == "loss" and rows.died else ends


def _of(one: FailedRank, values: Mapping[str, Value | None], weight: float = 0.0) -> Found:
    """Return what is found of a failure, where it was."""
    return Found(values, weight, step=one.step, rank=one.rank, stage=one.stage)


def _failure(rows: HealthRows, one: FailedRank, alike: Sequence[FailedRank], times: int) -> dict[str, Value | None]:
    return {
        "who": rank_name(one.rank, rows.ranks),
        "alike": len({other.rank for other in alike} - {one.rank}) or None,
        "error": one.error,
        "where": _where(one),
        "stage": one.stage,
        "step": one.step,
        "times": times,
    }


def _where(one: FailedRank) -> str:
    return place(one.stage, one.step, one.phase)


def _others(rows: HealthRows, cause: FailedRank | None, failures: Sequence[FailedRank]) -> dict[str, Value | None]:
    """Return who else failed after a cause; None is the death of a process."""
    names = list(dict.fromkeys(rank_name(one.rank, rows.ranks) for one in failures))
    return {
        "others": None if not names else names[0] if len(names) == 1 else f"{len(names)} more",
        "errors": sorted({one.error for one in failures}),
        "is_after": all(one.follows or (cause is not None and one.host == cause.host) for one in failures),
    }


@rule(
    "alarm",
    reads=(),
    condition="a process of the last attempt is gone with open stages, and no exception came first",
    window="the end",
    sentence=f"{WHO} was killed, last seen in {{where}}: it ended without an exception{OTHERS}.",
    advice="Look for a crash in its output; ask the scheduler and the kernel (`dmesg`) who sent a signal.",
)
def killed(rows: HealthRows) -> Found | None:
    """Find who died, unless an exception came first: then they were ended after it."""
    if not rows.died or _ends(rows):
        return None
    first = rows.died[0]
    values: dict[str, Value | None] = {
        "who": rank_name(Rank(first.role, first.rank), rows.ranks),
        "alike": len(rows.died) - 1 or None,
        "where": seen_in(first),
        "killed": None,
    }
    values |= _others(rows, None, [one for one in rows.failures if one.is_end])
    return Found(values, step=first.iteration, rank=Rank(first.role, first.rank), stage=first.stage)


@rule(
    "warning",
    reads=(v.ERROR_TYPE,),
    condition="an exception ended a step, and further steps or a further attempt followed",
    window="all steps",
    sentence=f"{WHO} failed with {{error}} {{where}}, and went on ({{times:plural failure}} in all).",
    advice="A step that fails is not counted; look at what was tried again.",
)
def failed_and_went_on(rows: HealthRows) -> Found | None:
    return _survived(rows, [one for one in rows.failures if not one.is_end and not one.is_called])


@rule(
    "warning",
    reads=(v.ERROR_TYPE,),
    condition="an exception ended a call in a process that a driver calls, or that works beside the ranks, or a "
    "rollout in the driver's own",
    window="all steps",
    sentence=f"{WHO} failed with {{error}} {{where}} ({{times:plural failure}} in all).",
    advice="See what its caller made of it: whether it tried again, or left the sample out.",
)
def call_failed(rows: HealthRows) -> Found | None:
    return _survived(rows, [one for one in rows.failures if not one.is_end and one.is_called])


def _survived(rows: HealthRows, failures: Sequence[FailedRank]) -> Found | None:
    """Return the last of failures that were survived."""
    times = len(failures)
    return _of(failures[-1], _failure(rows, failures[-1], failures, times), weight=times) if failures else None


@rule(
    "warning",
    reads=(v.ERROR_TYPE,),
    condition="the program was interrupted, or exited inside a step",
    window="the end",
    sentence="The run was stopped early.[ {error} ended it {where}.][ {who:Text} raised it.]"
    "{is_exit: It exited inside a step.|}",
)
def stopped(rows: HealthRows) -> Found | None:
    ends = _ends(rows)
    if ends and ends[0].error in INTERRUPTS:
        is_told = ends[0].error == "SystemExit" and len(rows.ranks) > 1  # an interrupt reaches all
        who = rank_name(ends[0].rank, rows.ranks) if is_told else None
        return _of(ends[0], {"error": ends[0].error, "where": _where(ends[0]), "who": who, "is_exit": False})
    is_interrupted = rows.attempt is not None and rows.attempt.state == "interrupted"
    return Found({"is_exit": True}) if is_interrupted else None


@rule(
    "warning",
    reads=(v.ATTEMPT_ID,),
    condition="the run's folder was moved while the run went on",
    window="the end",
    sentence="The folder of this run was moved while the run went on: what came after is not here.",
    advice="Look for a folder of the same name where this one was.",
)
def moved(rows: HealthRows) -> Found | None:
    return Found() if rows.attempt is not None and rows.attempt.state == "moved" else None


@rule(
    "warning",
    reads=(v.ATTEMPT_ID,),
    condition="an attempt before the last one failed or was killed",
    window="all attempts",
    sentence="{attempts:plural attempt} before this one ended early: {how}.",
    advice="Steps since the last checkpoint were made twice; goodput has their time.",
)
def restarted(rows: HealthRows) -> Found | None:
    early = rows.ended_early
    return Found({"attempts": len(early), "how": [_early(rows, one) for one in early]}) if early else None


def _early(rows: HealthRows, early: EndedEarly) -> str:
    cause = {} if early.cause is None else _failure(rows, early.cause, (), 1)
    return say(EARLY, {**cause, "state": early.attempt.state, "steps": early.attempt.steps})


ENDINGS: Final = table(
    out_of_memory,
    failed,
    killed,
    failed_and_went_on,
    call_failed,
    stopped,
    moved,
    restarted,
)
