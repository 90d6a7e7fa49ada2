"""The wall time of each attempt by kind."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Final

from otel_rl.analysis.goodput import Goodput, Kind, redone, total
from otel_rl.analysis.intervals import Interval
from otel_rl.analysis.steps import Step
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.time_use import GoodputKind, GoodputPart, GoodputRow
from otel_rl.report.fold.folded_spans import FoldedSpans, StepRecord
from otel_rl.report.read.containers import NOTHING, moved, twice, without
from otel_rl.report.read.span_attributes import WorkSums
from otel_rl.tables.peers import RankWaits

KINDS: Final[tuple[GoodputKind, ...]] = ("productive", "overhead", "idle", "wasted", "other")
RankOfAttempt = tuple[str, Rank]
StepOfRank = tuple[str, Rank, int, int]


class Goodputs:
    """The wall time of each rank and attempt; takes every step, also those that averages leave out."""

    def __init__(self, found: FoldedSpans) -> None:
        self._found = found
        called = {attempt for attempt, _ in found.guests}
        self._walls = {key: wall for key, wall in found.walls.items() if key in found.guests or key[0] not in called}
        self._again = _redone(found)
        self._twice = _twice(found)
        self._first_step_ns: dict[tuple[str, Rank], int] = {}
        self._steps: defaultdict[tuple[str, Rank], Goodput] = defaultdict(lambda: NOTHING)
        self._work: defaultdict[str, WorkSums] = defaultdict(WorkSums)
        self._inexact: set[str] = set()

    def add(self, record: StepRecord, waited: RankWaits) -> None:
        """Add a step of a rank, and the waits for its slower peers in it."""
        self._add(record, waited.by_kind, is_exact=not waited.is_least_kept)

    def add_cut(self, record: StepRecord, *, may_wait: bool) -> None:
        """Add a step that did not end, which is compared with no other; the rank may have waited in it."""
        self._add(record, {}, is_exact=not may_wait)

    def _add(self, record: StepRecord, waits_ns: Mapping[Kind, int], *, is_exact: bool) -> None:
        key = record.attempt, record.rank
        begin_ns = record.step.begin_ns
        self._first_step_ns[key] = min(begin_ns, self._first_step_ns.get(key, begin_ns))
        parts = self._once(key, (begin_ns, begin_ns + record.goodput.wall_ns), record.goodput)
        if _key(record) in self._again:
            parts = Goodput(0, 0, 0, parts.wall_ns, 0)
        else:
            parts = moved(parts, waits_ns)
            self._inexact |= set() if is_exact else {record.attempt}
        self._steps[key] = total([self._steps[key], parts])
        self._work[record.attempt] = self._work[record.attempt].plus(record.work)

    def _once(self, key: tuple[str, Rank], interval: Interval, parts: Goodput) -> Goodput:
        twice_ns = self._twice.get(key, {}).get(interval, 0)
        return without(parts, twice_ns) if twice_ns else parts

    def rows(self) -> list[GoodputRow]:
        by_attempt: defaultdict[str, list[Goodput]] = defaultdict(list)
        setup_ns: Counter[str] = Counter()
        for key, wall in self._walls.items():
            phases = [(begin_ns, self._once(key, (begin_ns, end_ns), one)) for (begin_ns, end_ns), one in wall.phases]
            first_step_ns = self._first_step_ns.get(key, wall.end_ns)
            setup_ns[key[0]] += sum(one.overhead_ns for begin_ns, one in phases if begin_ns < first_step_ns)
            parts = total([*(one for _, one in phases), self._steps[key]])
            between = Goodput(0, 0, 0, 0, wall.end_ns - wall.begin_ns - parts.wall_ns)
            by_attempt[key[0]].append(total([parts, between]))
        names = [name for name in self._found.attempts if name in by_attempt]
        rows = [self._row([name], total(by_attempt[name]), len(by_attempt[name]), setup_ns[name]) for name in names]
        everything = total(part for parts in by_attempt.values() for part in parts)
        ranks = len({rank for _, rank in self._walls})
        return [*rows, self._row(names, everything, ranks, setup_ns.total(), is_all=True)] if everything.wall_ns else []

    def _row(
        self, attempts: Sequence[str], parts: Goodput, ranks: int, setup_ns: int, *, is_all: bool = False
    ) -> GoodputRow:
        wall_ns = parts.wall_ns
        times_ns: dict[GoodputKind, int] = {kind: getattr(parts, f"{kind}_ns") for kind in KINDS}
        work = reduce(WorkSums.plus, (self._work[name] for name in attempts), WorkSums())
        padding = work.padding
        return GoodputRow(
            attempt=None if is_all else attempts[0],
            ranks=ranks,
            wall_ns=wall_ns,
            parts=[
                GoodputPart(kind=kind, time_ns=time_ns, share=time_ns / wall_ns if wall_ns else 0.0)
                for kind, time_ns in times_ns.items()
            ],
            setup_ns=setup_ns,
            is_idle_exact=self._inexact.isdisjoint(attempts),
            padding_share=None if padding is None else padding / (padding + work.forward_tokens),
        )


def _key(record: StepRecord) -> StepOfRank:
    return record.attempt, record.rank, record.step.begin_ns, record.step.iteration


def _twice(found: FoldedSpans) -> dict[tuple[str, Rank], dict[Interval, int]]:
    """Find the containers of each rank that overlap: of two loops at once, or of two processes of one rank."""
    intervals = {key: [interval for interval, _ in wall.phases] for key, wall in found.walls.items()}
    for record in found.steps:
        begin_ns = record.step.begin_ns
        intervals[record.attempt, record.rank].append((begin_ns, begin_ns + record.goodput.wall_ns))
    return {key: twice(of_rank) for key, of_rank in intervals.items()}


def _redone(found: FoldedSpans) -> set[StepOfRank]:
    """Find the steps that a later loop or attempt did again; for a rank that it lacks, any rank of the role did."""
    if len(found.attempts) < 2 and not any(record.restart_of for record in found.steps):
        return set()
    roles: dict[str, dict[str, defaultdict[Rank, list[StepRecord]]]] = {}
    for record in found.steps:
        attempts = roles.setdefault(record.rank.role, {name: defaultdict(list) for name in found.attempts})
        attempts[record.attempt][record.rank].append(record)
    return {
        key
        for attempts in roles.values()
        for number, ranks in enumerate(attempts.values())
        for own in list(ranks.values())
        for key in _redone_by(own, list(attempts.values())[number + 1 :], found.clocks)
    }


def _redone_by(
    own: Sequence[StepRecord],
    others: Iterable[Mapping[Rank, list[StepRecord]]],
    clocks: Mapping[RankOfAttempt, set[str]],
) -> Iterator[StepOfRank]:
    """Return a rank's steps of one attempt that others, which began after its end by the same clock, did again."""
    last = max(own, key=lambda record: record.step.end_ns)
    ended_ns = last.step.end_ns + last.clock_set_ns
    after: list[list[Step]] = []
    for ranks in others:
        row = ranks.get(own[0].rank) or [one for records in ranks.values() for one in records]
        same = [one for one in row if clocks[one.attempt, one.rank] & clocks[last.attempt, last.rank]]
        first = min(same, key=lambda one: one.step, default=None)
        if first is not None and first.step.begin_ns + first.clock_set_ns >= ended_ns:
            after.append([step for part in _parts(same) for step in part])
    intervals = set(redone([*_parts(own), *after]))
    yield from (_key(record) for record in own if (record.step.begin_ns, record.step.end_ns) in intervals)


def _parts(records: Sequence[StepRecord]) -> list[list[Step]]:
    """Split steps of one attempt where a loop restarts another, whose name it then has."""
    names: dict[str, str] = {}
    parts: list[list[Step]] = [[]]
    for record in records:
        loop = record.step.loop
        if loop not in names:
            names[loop] = names.get(record.restart_of, loop)
            parts += [[]] if record.restart_of else []
        parts[-1].append(record.step._replace(loop=names[loop]))
    return parts
