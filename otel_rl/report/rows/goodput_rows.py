"""The wall time of each attempt by kind."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_rl.analysis.goodput import Goodput, Kind, redone, total
from otel_rl.analysis.intervals import Interval
from otel_rl.analysis.steps import Step
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.time_use import GoodputKind, GoodputPart, GoodputRow
from otel_rl.report.fold.folded_spans import FoldedSpans, StepRecord, sums_of
from otel_rl.report.read.containers import NOTHING, Wall, moved, twice, without
from otel_rl.report.read.span_attributes import WorkSums
from otel_rl.tables.forest import sums

if TYPE_CHECKING:
    from otel_rl.tables.forest import Flags, Ints

KINDS: Final[tuple[GoodputKind, ...]] = ("productive", "overhead", "idle", "wasted", "other")
RankOfAttempt = tuple[str, Rank]
StepOfRank = tuple[str, Rank, int, int]


class Goodputs:
    """The wall time of each rank and attempt."""

    def __init__(
        self, found: FoldedSpans, records: Sequence[StepRecord], waits_ns: Mapping[Kind, Ints], is_exact: Flags
    ) -> None:
        """Fold the steps of ranks.

        Args:
            found: the run.
            records: every step, also those that averages leave out.
            waits_ns: how long each rank waited in it for slower peers, by the kind of the stage.
            is_exact: the waits are no lower bounds.
        """
        self._found = found
        called = {attempt for attempt, _ in found.guests}
        self._walls = {key: wall for key, wall in found.walls.items() if key in found.guests or key[0] not in called}
        ranks: dict[RankOfAttempt, int] = {}
        of = np.array([ranks.setdefault((record.attempt, record.rank), len(ranks)) for record in records], np.int64)
        begin = np.array([record.step.begin_ns for record in records], np.int64)
        of_steps, is_again = sums_of(records), _is_again(found, records)
        once = of_steps.goodput
        self._twice = _twice(self._walls, ranks, of, begin, begin + once.wall_ns)
        if self._twice:
            intervals = zip(begin.tolist(), (begin + once.wall_ns).tolist(), strict=True)
            parts = [
                self._once((record.attempt, record.rank), interval, record.goodput)
                for record, interval in zip(records, intervals, strict=True)
            ]
            once = Goodput(*np.array(parts, np.int64).T)
        wasted = Goodput(0, 0, 0, once.wall_ns, 0)
        columns = [
            sums(of, np.where(is_again, *pair), len(ranks)) for pair in zip(wasted, moved(once, waits_ns), strict=True)
        ]
        self._steps = {key: Goodput(*row) for key, row in zip(ranks, np.array(columns).T.tolist(), strict=True)}
        first_ns = np.full(len(ranks), np.iinfo(np.int64).max)
        np.minimum.at(first_ns, of, begin)
        self._first_step_ns = dict(zip(ranks, first_ns.tolist(), strict=True))
        inexact = set(np.unique(of[~is_exact & ~is_again]).tolist())
        self._inexact = {attempt for (attempt, _), number in ranks.items() if number in inexact}
        self._work = _padding(records, of_steps.work)

    def _once(self, key: RankOfAttempt, interval: Interval, parts: Goodput) -> Goodput:
        twice_ns = self._twice.get(key, {}).get(interval, 0)
        return without(parts, twice_ns) if twice_ns else parts

    def rows(self) -> list[GoodputRow]:
        by_attempt: defaultdict[str, list[Goodput]] = defaultdict(list)
        setup_ns: Counter[str] = Counter()
        for key, wall in self._walls.items():
            phases = [(begin_ns, self._once(key, (begin_ns, end_ns), one)) for (begin_ns, end_ns), one in wall.phases]
            first_step_ns = self._first_step_ns.get(key, wall.end_ns)
            setup_ns[key[0]] += sum(one.overhead_ns for begin_ns, one in phases if begin_ns < first_step_ns)
            parts = total([*(one for _, one in phases), self._steps.get(key, NOTHING)])
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
        work = reduce(WorkSums.plus, (self._work[name] for name in attempts if name in self._work), WorkSums())
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


def _padding(records: Sequence[StepRecord], work: WorkSums) -> dict[str, WorkSums]:
    """Add up by attempt what tells the padding of steps."""
    attempts: dict[str, int] = {}
    of = np.array([attempts.setdefault(record.attempt, len(attempts)) for record in records], np.int64)
    names = ("padding_tokens", "padded_tokens", "forward_tokens")
    rows = np.array([sums(of, getattr(work, name), len(attempts)) for name in names]).T.tolist()
    return {
        attempt: WorkSums(**dict(zip(names, row, strict=True))) for attempt, row in zip(attempts, rows, strict=True)
    }


def _twice(
    walls: Mapping[RankOfAttempt, Wall], ranks: Mapping[RankOfAttempt, int], of: Ints, begin: Ints, end: Ints
) -> dict[RankOfAttempt, dict[Interval, int]]:
    """Find the containers of each rank that overlap: of two loops at once, or of two processes of one rank.

    Args:
        walls: what is known of set-ups and tear-downs.
        ranks: the number of each rank.
        of: the rank of each step, as what follows.
        begin: ns.
        end: ns.
    """
    numbers = dict(ranks)
    phases = [
        (numbers.setdefault(key, len(numbers)), *interval) for key, wall in walls.items() for interval, _ in wall.phases
    ]
    of, begin, end = np.concatenate([np.array(phases, np.int64).reshape(-1, 3), np.stack([of, begin, end], 1)]).T
    order = np.lexsort((end, begin, of))
    is_early = (of[order][1:] == of[order][:-1]) & (begin[order][1:] < end[order][:-1])
    crowded, keys = np.unique(of[order][1:][is_early]).tolist(), list(numbers)
    return {
        keys[number]: twice(zip(begin[of == number].tolist(), end[of == number].tolist(), strict=True))
        for number in crowded
    }


def _is_again(found: FoldedSpans, records: Sequence[StepRecord]) -> Flags:
    again = _redone(found)
    return np.array([_key(record) in again for record in records] if again else [False] * len(records), bool)


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
