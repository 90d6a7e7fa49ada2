"""How far the numbers of a report can be trusted: what failed, was lost, is damaged or does not agree."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, Literal

from otel_rl import vocabulary as v
from otel_rl.analysis.steps import Name, disagreement
from otel_rl.journal.read import Journal, PointView
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import ClockSet, DamagedFile, Loss, RankStep, Report, StepDisagreement
from otel_rl.report.findings.causes import place
from otel_rl.report.findings.health import OTHER_NUMBERS, other_numbers
from otel_rl.report.findings.rule import say
from otel_rl.report.fold.folded_spans import StepRecord
from otel_rl.report.read.last_points import LastPoints
from otel_rl.report.section import Block, Line, Section, attempt_name, notes, rank_name
from otel_rl.runs.format import count, listed, plural, seconds
from otel_rl.runs.spans import text

COUNTED: Final[Mapping[str, Literal["dropped", "changed", "error"]]] = {
    v.SELF_DROPPED: "dropped",
    v.SELF_CHANGED: "changed",
    v.SELF_ERRORS: "error",
}
RECORDS: Final = {"traces": "span", "metrics": "metric point", "logs": "log record"}
MOST_DAMAGED: Final = 16
MOST_FAILURES: Final = 16


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
    names: defaultdict[tuple[str, str], defaultdict[Rank, list[Name]]] = defaultdict(lambda: defaultdict(list))
    ended = (record for record in records if not record.is_open)
    for record in sorted(ended, key=lambda record: record.step):
        names[record.attempt, record.rank.role][record.rank].append((record.step.loop, record.step.iteration))
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


def _failures(report: Report) -> list[Block]:
    left = len(report.failures) - MOST_FAILURES
    blocks = notes(f"and {plural(left, 'failure')} before these:" if left > 0 else "")
    for failure in report.failures[-MOST_FAILURES:]:
        who = rank_name(report, failure.rank)
        where = f"{place(failure.stage, failure.step)}{attempt_name(report, failure.attempt)}"
        blocks.append(Line(f"{who} failed with {failure.error} {where}", "warning"))
    if report.state == "interrupted":
        text = "The program exited inside a step, which is in no average."
        blocks.append(Line(text, "warning"))
    return blocks


def _unseen(report: Report) -> list[Block]:
    if not report.unseen_steps:
        return []
    ranks = " of all ranks" if len(report.ranks) > 1 else ""
    text = (
        f"{plural(report.unseen_steps, 'step')}{ranks} left numbers and no spans: not sampled (OTEL_TRACES_SAMPLER) or "
        "given up. Except for requests and series over the steps, the report covers the others only, without goodput."
    )
    return [Line(text, "warning")]


def _disagreement(report: Report, row: StepDisagreement) -> str:
    other = say(OTHER_NUMBERS, other_numbers(row, lambda rank: rank_name(report, rank)))
    return (
        f"Ranks call {row.steps} of {plural(row.compared, 'step')} by different numbers: {other}. Ranks are compared "
        "by these numbers: do not trust what is said of them."
    )


def _clock_lines(report: Report) -> list[str]:
    ranks: defaultdict[str, list[str]] = defaultdict(list)
    for row in sorted(report.clocks_set, key=lambda row: row.rank):
        way = "forward" if row.by_s > 0 else "back"
        loop = "" if row.loop == "train" else f" of {row.loop}"
        when = f"before step {row.step}{loop}{attempt_name(report, row.attempt)}"
        ranks[f"{way} by {seconds(abs(row.by_s))} {when}"].append(rank_name(report, row.rank))
    times = [f"that of {listed(names)} {what}" for what, names in ranks.items()]
    return [f"Wall clocks were set: {listed(times)}; durations do not depend on that."] if times else []


def _loss(loss: Loss) -> str:
    if loss.what == "dropped":
        return f"{plural(loss.count, RECORDS.get(loss.signal, 'record'))} dropped ({loss.reason})"
    if loss.what == "error":
        return f"{plural(loss.count, 'error')} inside otel_rl: could not {loss.reason}"
    if loss.reason == "name_clash":
        return f"{plural(loss.count, 'number')} distinguished by {v.METRIC_NAME} alone ({loss.reason})"
    return f"{plural(loss.count, 'value')} cut, replaced or left out ({loss.reason})"


def _caveats(report: Report) -> list[Block]:
    order = list(COUNTED.values())
    lines = [_loss(loss) for loss in sorted(report.losses, key=lambda loss: order.index(loss.what))]
    lines += [
        f"{row.writer}: {count(row.bytes)} bytes unreadable in {plural(row.places, 'place')} ({row.reason})"
        for row in report.damage[:MOST_DAMAGED]
    ]
    if len(report.damage) > MOST_DAMAGED:
        lines.append(f"and {plural(len(report.damage) - MOST_DAMAGED, 'journal')} more with unreadable bytes")
    return [Line(line, "warning") for line in (*lines, *_clock_lines(report))]


FAILURES: Final = Section(title="Failures", data={"failures": lambda source: source.found.failures}, blocks=_failures)
UNSEEN_STEPS: Final = Section(
    title="Steps without spans", data={"unseen_steps": lambda source: source.unseen_steps}, blocks=_unseen
)
DISAGREEMENTS: Final = Section(
    title="Numbers of steps",
    data={"disagreements": lambda source: source.disagreements},
    blocks=lambda report: [Line(_disagreement(report, row), "warning") for row in report.disagreements],
)
CAVEATS: Final = Section(
    title="Lost, changed or damaged",
    data={
        "losses": lambda source: source.losses,
        "damage": lambda source: source.damage,
        "clocks_set": lambda source: clock_rows(source.found.steps),
    },
    blocks=_caveats,
)
