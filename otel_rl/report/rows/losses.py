"""What was lost, damaged or recorded twice, and clocks that were set."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Final, Literal

from otel_rl import vocabulary as v
from otel_rl.analysis.steps import Name, disagreement
from otel_rl.journal.read import Journal, PointView
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import ClockSet, DamagedFile, Loss, RankStep, StepDisagreement
from otel_rl.report.fold.folded_spans import StepRecord
from otel_rl.report.read.last_points import LastPoints
from otel_rl.runs.spans import text

COUNTED: Final[Mapping[str, Literal["dropped", "changed", "error"]]] = {
    v.SELF_DROPPED: "dropped",
    v.SELF_CHANGED: "changed",
    v.SELF_ERRORS: "error",
}


def totals(points: Iterable[PointView]) -> Counter[tuple[str, str, str]]:
    last = LastPoints()
    for point in points:
        last.add(point)
    sums: Counter[tuple[str, str, str]] = Counter()
    for point in last.points():
        sums[point.name, text(point.attributes, v.SIGNAL), text(point.attributes, v.REASON)] += int(point.value)
    return sums


def loss_rows(points: Iterable[PointView]) -> list[Loss]:
    return [
        Loss(what=COUNTED[name], signal=signal, reason=reason, count=number)
        for (name, signal, reason), number in sorted(totals(points).items())
        if number
    ]


def damage_rows(journals: Iterable[Journal]) -> list[DamagedFile]:
    return [
        DamagedFile(
            writer=journal.identity.writer,
            places=len(journal.damage),
            bytes=sum(place.length for place in journal.damage),
            reason=journal.damage[0].reason,
        )
        for journal in journals
        if journal.damage
    ]


def disagreements(
    records: Iterable[StepRecord], journals: Iterable[Journal], losses: Iterable[Loss]
) -> list[StepDisagreement]:
    """Compare the ranks of each attempt and role by the order of their steps; nothing is said if spans were lost."""
    is_lossy = any(loss.what == "dropped" and loss.signal == "traces" for loss in losses)
    if is_lossy or any(journal.spans_known_from or journal.damage for journal in journals):
        return []
    of_ranks: defaultdict[tuple[str, Rank], list[Name]] = defaultdict(list)
    ended = (record for record in records if not record.is_open)
    for record in sorted(ended, key=attrgetter("step")):
        of_ranks[record.attempt, record.rank].append(record.step[2:])
    names: defaultdict[tuple[str, str], dict[Rank, list[Name]]] = defaultdict(dict)
    for (attempt, rank), listed in of_ranks.items():
        names[attempt, rank.role][rank] = listed
    rows: list[StepDisagreement] = []
    for (attempt, role), of_rank in names.items():
        if found := disagreement(of_rank):
            first = [RankStep(rank.rank, *name) for rank, name in sorted(found.first.items())]
            row = StepDisagreement(attempt=attempt, role=role, steps=found.steps, compared=found.compared, first=first)
            rows.append(row)
    return rows


def clock_rows(records: Iterable[StepRecord]) -> list[ClockSet]:
    rows: list[ClockSet] = []
    known_ns: defaultdict[tuple[str, Rank], int] = defaultdict(int)
    for record in records:
        by_ns = record.clock_set_ns - known_ns[record.attempt, record.rank]
        if by_ns:
            known_ns[record.attempt, record.rank] = record.clock_set_ns
            loop, step = record.step.loop, record.step.iteration
            rows.append(ClockSet(attempt=record.attempt, rank=record.rank, loop=loop, step=step, by_s=by_ns / 1e9))
    return rows
