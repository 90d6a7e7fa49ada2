"""The attempts of a run: how long each lasted, how it ended, and which are of helper programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence, Set

from otel_rl import vocabulary as v
from otel_rl.journal.read import OpenView
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import Attempt, Follows, State
from otel_rl.report.fold.folded_spans import FoldedSpans, StepRecord
from otel_rl.report.read.average import Averaged
from otel_rl.report.read.containers import Bounds, without
from otel_rl.report.read.single_controller.guest_steps import is_driver
from otel_rl.report.read.span_attributes import begun_ns, clock_set_ns, rank_of
from otel_rl.runs.spans import is_container, text


def add_open(found: FoldedSpans, opened: Sequence[OpenView]) -> None:
    for container in sorted(filter(lambda view: is_container(view.name), opened), key=begun_ns):
        found.holders.add(container.journal.identity.writer)
        if is_driver(container):
            found.led.add(text(container.resource, v.ATTEMPT_ID))
        found.clock_set_ns[container.journal.identity.writer] = clock_set_ns(container)
        if clock_set_ns(container):
            found.set_in.add(text(container.resource, v.ATTEMPT_ID))
    for view in opened:
        attempt, set_ns = text(view.resource, v.ATTEMPT_ID), clock_set_ns(view)
        if is_container(view.name) or attempt not in found.set_in:
            end_ns = max(view.start_ns, view.last_ns)
            found.widen(attempt, Bounds(view.start_ns - set_ns, end_ns - set_ns))
        found.know(view.resource, view.journal.identity)


def living(alive: set[str], found: FoldedSpans) -> set[str]:
    """Leave out the workers of attempts whose ranks have recorded their tear-down: a worker that is killed cannot."""
    over = [attempt for attempt in found.phases if _has_teardown(attempt, found)]
    helpers = [found.writers[attempt] for attempt in over if not found.writers[attempt] & alive & found.holders]
    return alive.difference(*helpers)


def add_now(found: FoldedSpans, alive: set[str], now_ns: int, read_ns: int) -> None:
    """Extend attempts whose processes are alive until now: inside a long stage they may record nothing for hours.

    What ended up to ``read_ns`` after ``now_ns`` was written while the spans were read; what ended even later was
    written by a clock that is ahead. If clocks were set, now is the earliest that it may be by one that was not.
    """
    for attempt, bounds in found.attempts.items():
        holders = found.writers[attempt] & found.holders
        own_ns = now_ns - max((found.clock_set_ns[writer] for writer in holders), default=0)
        ends = [one.end_ns for one in found.attempts.values()]
        if found.writers[attempt] & alive:
            bounds.widen(bounds.begin_ns, max([own_ns, *(end_ns for end_ns in ends if end_ns - own_ns <= read_ns)]))


def end_setups(found: FoldedSpans) -> None:
    """End each set-up with the first step of its rank: a process that starts ranks stays in its own until they end."""
    first_ns: dict[tuple[str, Rank], int] = {}
    for record in found.steps:  # in order of their begins
        first_ns.setdefault((record.attempt, record.rank), record.step.begin_ns)
        if len(first_ns) == len(found.walls):
            break
    for (attempt, rank), begin_ns in first_ns.items():
        wall, phases = found.walls[attempt, rank], found.phases[attempt]
        for number, (interval, parts) in enumerate(wall.phases):
            late_ns = interval[1] - begin_ns
            if interval[0] < begin_ns < interval[1]:
                wall.phases[number] = (interval[0], begin_ns), without(parts, late_ns)
        for number, span in enumerate(phases):
            if rank_of(span.resource) == rank and span.start_ns < begin_ns < span.end_ns:
                phases[number] = span._replace(end_ns=begin_ns)


def leave_out_helpers(found: FoldedSpans) -> None:
    """Forget the attempts of programs beside the training, such as a launcher: without a step, beside one with steps.

    An attempt that died before its first step lies before or after the others.
    """
    stepped = {record.attempt for record in found.steps}
    for helper in [name for name in found.attempts if name not in stepped]:
        if any(_is_beside(helper, attempt, found) for attempt in stepped):
            del found.attempts[helper]
            for key in [key for key in found.walls if key[0] == helper]:
                del found.walls[key]


def _is_beside(helper: str, attempt: str, found: FoldedSpans) -> bool:
    """Return whether one of two attempts lies inside the other, by a clock that both have."""
    clocks = [
        set().union(*(known for key, known in found.clocks.items() if key[0] == name)) for name in (helper, attempt)
    ]
    one, other = found.attempts[helper], found.attempts[attempt]
    is_inside = other.begin_ns <= one.begin_ns and one.end_ns <= other.end_ns
    is_outside = one.begin_ns <= other.begin_ns and other.end_ns <= one.end_ns
    return bool(clocks[0] & clocks[1]) and (is_inside or is_outside)


def attempt_rows(
    found: FoldedSpans,
    averaged: Averaged,
    opened: Sequence[OpenView],
    alive: set[str],
    unwritten: Set[str],
    moved: Set[str],
    ranks: Container[Rank],
) -> list[Attempt]:
    return [
        Attempt(
            id=attempt,
            state="moved" if found.writers[attempt] & moved else _state(attempt, found, opened, alive, unwritten),
            begin_ns=bounds.begin_ns,
            end_ns=bounds.end_ns,
            steps=sum(name == attempt for name, _, _ in averaged.keys),
            ranks=sum(rank in ranks for rank in found.ranks[attempt]),
            setup_s=_setup_s(attempt, found),
        )
        for attempt, bounds in found.attempts.items()
    ]


def _state(attempt: str, found: FoldedSpans, opened: Iterable[OpenView], alive: set[str], unwritten: Set[str]) -> State:
    is_over = loop_is_over(attempt, found, opened)  # then whoever is left is ended by Ray, in whatever it is
    views = [view for view in opened if text(view.resource, v.ATTEMPT_ID) == attempt and not is_over]
    views = [view for view in views if view.journal.identity.writer not in unwritten]
    left = [view.name for view in views]
    living = set() if is_over else found.writers[attempt] & alive
    is_killed = any(map(is_container, left))
    if living and (living & found.holders or not is_killed):
        return "alive"
    has_teardown = is_over or _has_teardown(attempt, found)
    last = {record.rank: record for record in found.steps if record.attempt == attempt}
    errors = _errors(attempt, found, last.values())
    if is_killed and all(one == "loss" for one in errors):
        return "killed"  # at most a worker outlives it
    if errors:
        return "failed"  # who is in a stage was ended after the exception
    if left and not has_teardown:
        return "killed"  # after an exception or the tear-down it is what a worker was in that was ended with them
    is_unwritten = bool(found.writers[attempt] & unwritten)
    if is_unwritten or any(record.is_open and not _is_torn_down(record, found) for record in last.values()):
        return "unwritten" if is_unwritten else "interrupted"
    return "finished" if has_teardown else "unknown"


def loop_is_over(attempt: str, found: FoldedSpans, opened: Iterable[OpenView]) -> bool:
    """Return whether the driver of an attempt has begun its tear-down: the steps are over; False without a driver."""
    if attempt not in found.led:
        return False
    views = [view for view in opened if is_driver(view) and text(view.resource, v.ATTEMPT_ID) == attempt]
    return _has_teardown(attempt, found) or any(view.name == v.TEARDOWN for view in views)


def _has_teardown(attempt: str, found: FoldedSpans) -> bool:
    return any(span.name == v.TEARDOWN for span in found.phases[attempt])


def _errors(attempt: str, found: FoldedSpans, last: Iterable[StepRecord]) -> list[Follows]:
    """Return what the exceptions followed that ended an attempt: in the last step of a rank, or outside of any."""
    keys = {record.rank: record.key for record in last}
    failures = [one for one in found.failures if one not in found.survived]
    ends = [one for one in failures if (one.attempt, one.loop, one.step) == keys.get(one.rank)]
    return [one.follows for one in ends] + [one.follows for one in found.ended_outside(attempt)]


def _is_torn_down(record: StepRecord, found: FoldedSpans) -> bool:
    return any(
        rank_of(span.resource) == record.rank and span.start_ns >= record.step.begin_ns
        for span in found.phases[record.attempt]
    )


def _setup_s(attempt: str, found: FoldedSpans) -> float | None:
    spans = found.phases[attempt]
    traces = {span.trace_id for span in spans if span.name == v.SETUP}
    times = [span.end_ns - span.start_ns for span in spans if span.trace_id in traces and span.name != v.TEARDOWN]
    return max(0, *times) / 1e9 if times else None


def missing_ranks(found: FoldedSpans, ranks: Iterable[Rank]) -> int:
    """Count the training ranks of the last attempt of which nothing was read, by what the others say."""
    last, known = next(reversed(found.attempts), ""), Counter(rank.role for rank in ranks)
    roles = {record.rank.role for record in found.steps if record.attempt == last}
    return sum(max(0, found.worlds[last, role] - known[role]) for role in roles)
