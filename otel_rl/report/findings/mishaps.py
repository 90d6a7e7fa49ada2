"""What can go wrong with a run besides its learning: what is known of that, and how it is found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final, Literal

from otel_rl.report.data.finding import Value
from otel_rl.report.findings.causes import INTERRUPTS, Died, Failed, and_others, by_cause, place
from otel_rl.report.findings.memory import RankMemory, found, growing, is_soon
from otel_rl.report.findings.rule import Found
from otel_rl.runs.format import listed, seconds, size

OUT_OF_MEMORY: Final = ("OutOfMemory", "MemoryError", "out of memory")
"""One of them is in the name of the exception."""
ROW: Final = 8
"""No update is made if the last so many steps skipped theirs: a loss scale has settled by then."""
SKIPPED: Final = 0.05
FAILED: Final = 0.01
"""Shares from which on skipped updates and failed requests are a warning."""
HALF: Final = 0.5
LATE_S: Final = 1.0
"""An event loop that is late by so much serves nobody meanwhile."""
FEW: Final = 3
"""Fewer skipped updates or failed requests say nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """A stage that is open for much longer than any that ended."""

    who: str
    where: str
    open_s: float
    longest_s: float
    is_comm: bool
    """It is in a collective, where ranks wait for another one, or waits for what a driver's processes do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalled:
    """A stage that held the run up."""

    chain: str
    """Who waits for whom, or how it ended."""
    where: str
    """Such as `rl.reward of rank 3, step 12`."""
    age_s: float
    is_over: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFault:
    """What the correctness ledger says of some steps."""

    fault: str
    boundary: str
    who: str
    steps: Sequence[int]
    kind: Literal["tokens", "numbers", "nonfinite"]
    """Training uses other tokens than were sampled, numbers of the same tokens are far apart, or NaN or infinite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Updates:
    """The optimizer's updates of the rank that skipped most of them, in the last attempt."""

    steps: int
    skipped: int
    last_row: int
    """Steps at the end that skipped theirs, in a row."""
    since: int
    """The first step of that row, or the first that skipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestsOf:
    """How the requests of an engine ended."""

    engine: str
    count: int
    errors: int
    timed_out: int
    aborted: int = 0
    """0 where answers are aborted by design: those that outlive a step are, and go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LateLoop:
    """The event loop of a process that was late by `LATE_S` or more inside steps."""

    who: str
    lag_s: float
    step: int
    """In which it was latest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What the rules of health read."""

    steps: int = 0
    """Made by the last attempt."""
    planned: int = 0
    """Steps that it shall make; 0 if unknown."""
    memory: Sequence[RankMemory] = ()
    stalls: Sequence[Stalled] = ()
    hangs: Sequence[Hang] = ()
    failures: Sequence[Failed] = ()
    died: Sequence[Died] = ()
    is_interrupted: bool = False
    """The program exited inside a step."""
    is_moved: bool = False
    """The run went on in another folder, as this one was moved."""
    ended_early: Sequence[str] = ()
    """How the attempts before the last one ended, as far as they were killed or failed."""
    ranks: int = 1
    missing_ranks: int = 0
    disagreeing: int = 0
    """Steps that the ranks call by different numbers."""
    compared: int = 0
    other_numbers: str = ""
    """Such as `what rank 0 calls step 1 is step 3 on rank 1`."""
    faults: Sequence[DataFault] = ()
    lost: Sequence[str] = ()
    """What of the telemetry was lost, such as `12 spans (queue_full)`."""
    updates: Updates | None = None
    requests: Sequence[RequestsOf] = field(default_factory=tuple)
    late_loops: Sequence[LateLoop] = ()


def stalled(health: Health) -> Found | None:
    """Find the stall that goes on, or ended with its process; of several the longest."""
    going_on = [one for one in health.stalls if not one.is_over]
    if not going_on:
        return None
    one = max(going_on, key=lambda stall: stall.age_s)
    return Found({"chain": one.chain, "age": one.age_s}, weight=one.age_s)


def stood_still(health: Health) -> Found | None:
    """Find the stalls that ended by themselves."""
    over = [one for one in health.stalls if one.is_over]
    if not over:
        return None
    one = max(over, key=lambda stall: stall.age_s)
    lost_s = sum(stall.age_s for stall in over)
    how = f": {one.where}"
    if len(over) > 1:
        how = f" in {len(over)} stalls; the longest: {one.where}, for {seconds(one.age_s)}"
    return Found({"lost": lost_s, "how": how}, weight=lost_s)


def hanging(health: Health) -> Found | None:
    """Find the rank for which others wait: one that is in no collective, and for the longest time."""
    if not health.hangs:
        return None
    one = min(health.hangs, key=lambda hang: (hang.is_comm, -hang.open_s))
    others = len(health.hangs) - 1
    return Found(
        {
            "hangs": f"{_first(one.who)} may hang" + (f", like {others} more" if others else ""),
            "where": one.where,
            "open": one.open_s,
            "longest": one.longest_s,
        },
        weight=one.open_s,
    )


def _failed_with(failures: Sequence[Failed]) -> Found | None:
    """Tell of the last of failures that were survived."""
    if not failures:
        return None
    last = failures[-1]
    return _found(last, len({one.who for one in failures} - {last.who}), len(failures))


def _found(one: Failed, alike: int, times: int, others: str = "") -> Found:
    values: dict[str, Value] = {
        "who": _first(one.who) + (f", like {alike} more," if alike else ""),
        "error": one.error,
        "where": place(one.stage, one.step, one.phase),
        "stage": one.stage,
        **({} if one.step is None else {"step": one.step}),
        "times": times,
        "others": others,
    }
    return Found(values, weight=times)


def _ended(health: Health) -> list[Failed]:
    """Return the failures that ended the run, the cause first; none if somebody died and they followed from that."""
    ended = by_cause(one for one in health.failures if one.is_end)
    return [] if ended and ended[0].follows == "loss" and health.died else ended


def _ended_with(health: Health, *, is_memory: bool) -> Found | None:
    ended = _ended(health)
    if not ended or ended[0].error in INTERRUPTS:
        return None
    cause, *rest = ended
    if any(word in cause.error for word in OUT_OF_MEMORY) != is_memory:
        return None
    alike = [one for one in rest if (one.error, one.stage) == (cause.error, cause.stage)]
    others = [one for one in rest if one not in alike]
    return _found(cause, len({one.who for one in alike}), len(ended), and_others(cause, others, health.died))


def out_of_memory(health: Health) -> Found | None:
    return _ended_with(health, is_memory=True)


def failed(health: Health) -> Found | None:
    return _ended_with(health, is_memory=False)


def went_on(health: Health) -> Found | None:
    return _failed_with([one for one in health.failures if not one.is_end and not one.is_called])


def called_failed(health: Health) -> Found | None:
    return _failed_with([one for one in health.failures if not one.is_end and one.is_called])


def stopped(health: Health) -> Found | None:
    for one in _ended(health)[:1]:
        if one.error in INTERRUPTS:
            return Found({"what": f"{one.error} ended it {place(one.stage, one.step, one.phase)}"})
    return Found({"what": "It exited inside a step"}) if health.is_interrupted else None


def moved(health: Health) -> Found | None:
    return Found({}) if health.is_moved else None


def died(health: Health) -> Found | None:
    """Tell who died, unless an exception came first: then they were ended after it."""
    if not health.died or _ended(health):
        return None
    one, others = health.died[0], len(health.died) - 1
    values = {"who": _first(one.who) + (f", like {others} more," if others else ""), "where": one.where}
    followed = [failure for failure in health.failures if failure.is_end]
    return Found({**values, "others": and_others(None, followed, ())})


def restarted(health: Health) -> Found | None:
    if not health.ended_early:
        return None
    return Found({"attempts": len(health.ended_early), "how": listed(health.ended_early)})


def missing(health: Health) -> Found | None:
    number = health.missing_ranks
    return Found({"missing": number, "ranks": health.ranks + number}) if number else None


def disagree(health: Health) -> Found | None:
    if not health.disagreeing:
        return None
    return Found({"steps": health.disagreeing, "compared": health.compared, "other": health.other_numbers})


def _faulty(health: Health, kind: str) -> Found | None:
    faults = [one for one in health.faults if one.kind == kind]
    if not faults:
        return None
    one = max(faults, key=lambda fault: len(fault.steps))
    fault = one.fault if kind == "tokens" else _first(one.fault)
    values: dict[str, Value] = {"fault": fault, "boundary": one.boundary, "who": one.who, "first": min(one.steps)}
    return Found({**values, "steps": len(set(one.steps))}, weight=len(one.steps))


def other_data(health: Health) -> Found | None:
    return _faulty(health, "tokens")


def far_apart(health: Health) -> Found | None:
    return _faulty(health, "numbers")


def nonfinite(health: Health) -> Found | None:
    return _faulty(health, "nonfinite")


def lost(health: Health) -> Found | None:
    return Found({"lost": listed(health.lost)}) if health.lost else None


def no_update(health: Health) -> Found | None:
    updates = health.updates
    if updates is None or updates.last_row < ROW:
        return None
    return Found({"row": updates.last_row, "since": updates.since}, weight=updates.last_row)


def skipped(health: Health) -> Found | None:
    updates = health.updates
    if updates is None or updates.last_row >= ROW or updates.skipped < max(FEW, SKIPPED * updates.steps):
        return None
    return Found({"skipped": updates.skipped, "steps": updates.steps, "since": updates.since})


def _requests(health: Health, low: float, high: float) -> Found | None:
    known = [(one.errors + one.timed_out, one) for one in health.requests if one.count]
    rows = [(bad, one) for bad, one in known if bad >= FEW and low <= bad / one.count < high]
    if not rows:
        return None
    bad, one = max(rows, key=lambda row: row[0] / row[1].count)
    values: dict[str, Value] = {
        "engine": one.engine or "the engine",
        "bad": bad,
        "count": one.count,
        "share": bad / one.count,
    }
    return Found({**values, "timed_out": one.timed_out}, weight=bad / one.count)


def most_requests(health: Health) -> Found | None:
    return _requests(health, HALF, 2.0)


def some_requests(health: Health) -> Found | None:
    return _requests(health, FAILED, HALF)


def aborted_requests(health: Health) -> Found | None:
    rows = [one for one in health.requests if one.aborted >= FEW and one.aborted >= FAILED * one.count]
    if not rows:
        return None
    one = max(rows, key=lambda row: row.aborted / row.count)
    share = one.aborted / one.count
    values: dict[str, Value] = {"aborted": one.aborted, "count": one.count, "share": share}
    return Found({**values, "engine": one.engine or "the engine"}, weight=share)


def late_loop(health: Health) -> Found | None:
    if not health.late_loops:
        return None
    one, others = max(health.late_loops, key=lambda loop: loop.lag_s), len(health.late_loops) - 1
    who = one.who + (f", like {others} more," if others else "")
    return Found({"who": who, "lag": one.lag_s, "step": one.step}, weight=one.lag_s)


def memory_full(health: Health) -> Found | None:
    return found([row for row in growing(health.memory) if is_soon(row, health.steps, health.planned)])


def memory_grows(health: Health) -> Found | None:
    rows = growing(health.memory)
    return None if any(is_soon(row, health.steps, health.planned) for row in rows) else found(rows)


def healthy(health: Health) -> Found:
    """Tell what memory did: the median of the ranks, and the change of the process that grew most."""
    known = [one for one in health.memory if one.of == "host" and one.bytes]
    ranks = [one for one in known if one.is_rank]
    if not ranks:
        return Found({"memory": ""})
    last = median(one.bytes[-1] for one in ranks)
    values: dict[str, Value] = {"memory": f" Memory {size(last)}{' a rank' if len(ranks) > 1 else ''}", "bytes": last}
    most = max(known, key=lambda one: (one.bytes[-1] - one.bytes[0], one.is_rank))
    if len(most.bytes) > 1:
        change, since = most.bytes[-1] - most.bytes[0], most.steps[0]
        values |= {"change": change, "since": since}
        sign = "+" if change >= 0 else "-"
        values["memory"] = (
            f"{values['memory']}{',' if most.is_rank else f'; {most.who}'} {sign}{size(abs(change))} since step {since}"
        )
    return Found({**values, "memory": f"{values['memory']}."})


def _first(text: str) -> str:
    return text[:1].upper() + text[1:]
