"""How far the numbers of a report can be trusted: what failed, was lost, is damaged or does not agree."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.report.data.report import Loss, Report, StepDisagreement
from otel_rl.report.findings.causes import place
from otel_rl.report.findings.health import OTHER_NUMBERS, other_numbers
from otel_rl.report.findings.rule import say
from otel_rl.report.rows.losses import COUNTED
from otel_rl.report.section import Block, Line, Section, attempt_name, notes, rank_name
from otel_rl.runs.format import RECORDS, count, listed, plural, seconds

MOST_DAMAGED: Final = 16
MOST_FAILURES: Final = 16


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


def _lost(report: Report) -> list[Block]:
    order = list(COUNTED.values())
    lines = [_loss(loss) for loss in sorted(report.losses, key=lambda loss: order.index(loss.what))]
    lines += [
        f"{row.writer}: {count(row.bytes)} bytes unreadable in {plural(row.places, 'place')} ({row.reason})"
        for row in report.damage[:MOST_DAMAGED]
    ]
    if len(report.damage) > MOST_DAMAGED:
        lines.append(f"and {plural(len(report.damage) - MOST_DAMAGED, 'journal')} more with unreadable bytes")
    return [Line(line, "warning") for line in lines]


def _settings(report: Report) -> list[Block]:
    lines = [f"{report.rules.file}: {problem}" for problem in report.rules.problems]
    return [Line(line, "warning") for line in (*lines, *_clock_lines(report))]


FAILURES: Final = Section(title="Failures", blocks=_failures)
UNSEEN_STEPS: Final = Section(title="Steps without spans", blocks=_unseen)
DISAGREEMENTS: Final = Section(
    title="Numbers of steps",
    blocks=lambda report: [Line(_disagreement(report, row), "warning") for row in report.disagreements],
)
LOST: Final = Section(title="Lost, changed or damaged", blocks=_lost)
CAVEATS: Final = Section(title="Rules and clocks", blocks=_settings)
