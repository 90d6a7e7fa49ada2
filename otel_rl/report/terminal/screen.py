"""The verdict in the terminal: one screen from the sentence to the details."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.text import Text

from otel_rl import vocabulary as v
from otel_rl.report.data.report import Report
from otel_rl.report.format import clock, count, listed, plural, printable, seconds
from otel_rl.report.read.clocks import clock_lines
from otel_rl.report.read.step_names import disagreement_lines
from otel_rl.report.terminal.balance import balance_table
from otel_rl.report.terminal.comm import comm_table
from otel_rl.report.terminal.fitting import shorten
from otel_rl.report.terminal.goodput import goodput_table
from otel_rl.report.terminal.memory_parts import parts_table
from otel_rl.report.terminal.model import flops_table, ledger_lines
from otel_rl.report.terminal.open_stages import ROWS, open_lines, pending_lines
from otel_rl.report.terminal.ranks import rank_table
from otel_rl.report.terminal.requests import request_table
from otel_rl.report.terminal.series import numbers_table, series_table
from otel_rl.report.terminal.stages import stage_table
from otel_rl.report.terminal.style import GOOD, HEADING, NOTE, WARNING, attempt_name, rank_name
from otel_rl.report.terminal.work import memory_table, rate_lines, work_table

STATES: Final = {
    "alive": ("running", GOOD),
    "finished": ("finished", GOOD),
    "failed": ("failed", WARNING),
    "killed": ("killed", WARNING),
    "interrupted": ("interrupted", WARNING),
    "unknown": ("ended, no tear-down recorded", WARNING),
}
RECORDS: Final = {"traces": "span", "metrics": "metric point", "logs": "log record"}
MOST_DAMAGED: Final = 16
"""Journals with damage that are listed."""
FAILURE_ROWS: Final = 16
"""Failures that are listed, the last ones."""


def render(report: Report, console: Console) -> None:
    """Print a report; colours and width are the console's. Paths come in one piece, so that they can be copied."""
    console.print(document(report, console.width), highlight=False)
    console.print()
    for path in (report.path, *(one.path for one in report.pending[:ROWS])):
        console.print(Text(printable(path), style=NOTE), soft_wrap=True)


def document(report: Report, width: int) -> RenderableType:
    """Lay a report out for a terminal of ``width`` columns; texts of the journal cannot order that terminal about."""
    report = _printable(report)
    is_hanging = any(row.is_hanging for row in report.open_stages)  # then this is what matters
    sections: list[RenderableType | None] = [
        _header(report, width),
        open_lines(report) if is_hanging else None,
        _sentence(report),
        _failures(report),
        ledger_lines(report),
        _unseen(report),
        disagreement_lines(report),
        None if is_hanging else open_lines(report),
        pending_lines(report),
        stage_table(report, width),
        balance_table(report, width),
        rank_table(report, width),
        comm_table(report, width),
        goodput_table(report, width),
        flops_table(report),
        request_table(report),
        series_table(report),
        numbers_table(report),
        work_table(report),
        memory_table(report),
        parts_table(report),
        _trust(report),
    ]
    parts: list[RenderableType] = []
    for section in sections:
        if section is not None:
            parts += [section, Text()]
    return Group(*parts[:-1])


def _printable(value: Any) -> Any:
    """Make every text in a report printable."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [_printable(item) for item in value]
    if isinstance(value, dict):
        return {_printable(key): _printable(item) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: _printable(getattr(value, field.name)) for field in fields(value)})
    return value


def _header(report: Report, width: int) -> Text:
    state, style = STATES[report.state] if report.attempts else ("nothing recorded", WARNING)
    if report.state == "unknown" and report.verdict.kind == "nothing":
        state, style = "ended", NOTE  # who makes no step has nothing to tear down
    title = Text(shorten(f"otel_rl  {report.run}", max(1, width - len(state) - 2)), style="bold")
    title.append(" " * max(2, width - title.cell_len - len(state)))
    title.append(state, style=style)
    system = f"{report.system} {report.system_version}".strip()
    read, all_ranks = len(report.ranks), len(report.ranks) + report.missing_ranks
    ranks = f"{f'{read} of ' if read < all_ranks else ''}{plural(all_ranks, 'rank')}" if read else ""
    trained = [listed(list(dict.fromkeys(filter(None, names)))) for names in _trained(report)]
    facts = [system, *trained, ranks, _steps(report)]
    setup = report.attempts[-1].setup_s if report.attempts else None
    lasted = {"alive": "running for", "killed": "lasted at least"}.get(report.state, "lasted")
    times = [f"started {clock(report.begin_ns)}", f"{lasted} {seconds(report.duration_s)}"] if report.begin_ns else []
    times += [f"set-up {seconds(setup)}"] if setup is not None else []
    lines = [" · ".join(fact for fact in facts if fact), " · ".join(times), *rate_lines(report)]
    lines += [_trainings(report)] if len(report.trainings) > 1 else []
    lines += [_attempts(report)] if len(report.attempts) > 1 else []
    return Text("\n").join([title, *(Text(line) for line in lines if line)])


def _unseen(report: Report) -> Text | None:
    if not report.unseen_steps:
        return None
    ranks = " of all ranks" if len(report.ranks) > 1 else ""
    return Text(
        f"{plural(report.unseen_steps, 'step')}{ranks} left numbers and no spans: not sampled (OTEL_TRACES_SAMPLER) or "
        "given up. All but requests and what is told over the steps is of the others, and no goodput is given.",
        style=WARNING,
    )


def _failures(report: Report) -> Text | None:
    """Return the lines about steps that ended early."""
    before = len(report.failures) - FAILURE_ROWS
    lines = [Text(f"and {plural(before, 'failure')} before these:", style=NOTE)] if before > 0 else []
    for failure in report.failures[-FAILURE_ROWS:]:
        who = rank_name(report, failure.rank.role, failure.rank.rank)
        where = f"inside {failure.stage}, step {failure.step}{attempt_name(report, failure.attempt)}"
        what = f"{who} failed with {failure.error} {where}"
        lines.append(Text(what, style=WARNING))
    if report.state == "interrupted":
        text = "The program exited while another thread was inside a step, which is in no average."
        lines.append(Text(text, style=WARNING))
    return Text("\n").join(lines) if lines else None


def _steps(report: Report) -> str:
    steps = report.steps
    if not steps.recorded:
        return "no finished step"
    span = f" ({steps.first}-{steps.last})" if steps.last != steps.first else f" ({steps.first})"
    loops = f" in {plural(steps.loops, 'loop')}" if steps.loops > 1 else ""
    return plural(steps.recorded, "step") + span + loops


def _attempts(report: Report) -> str:
    parts = [f"{STATES[attempt.state][0]} after {plural(attempt.steps, 'step')}" for attempt in report.attempts]
    return f"{len(report.attempts)} attempts: {', then '.join(parts)}"


def _trained(report: Report) -> tuple[list[str], list[str]]:
    """List the algorithms and the models of a run."""
    if not report.trainings:
        return [report.algorithm], [report.model]
    return [one.algorithm for one in report.trainings], [one.model for one in report.trainings]


def _trainings(report: Report) -> str:
    parts = [
        f"{' of '.join(filter(None, (one.algorithm, one.model))) or 'unknown'} for {plural(one.steps, 'step')}"
        for one in report.trainings
    ]
    return f"{len(report.trainings)} trainings: {', then '.join(parts)}"


def _sentence(report: Report) -> Text:
    return Text(report.verdict.sentence, style=HEADING)


def _trust(report: Report) -> Text | None:
    """Say what the numbers above lack."""
    lines = [
        f"{plural(loss.count, RECORDS.get(loss.signal, 'record'))} dropped ({loss.reason})"
        for loss in report.losses
        if loss.what == "dropped"
    ]
    lines += [
        f"{plural(loss.count, 'number')} told apart by {v.METRIC_NAME} alone ({loss.reason})"
        if loss.reason == "name_clash"
        else f"{plural(loss.count, 'value')} cut, replaced or left out ({loss.reason})"
        for loss in report.losses
        if loss.what == "changed"
    ]
    lines += [
        f"{plural(loss.count, 'error')} inside otel_rl: could not {loss.reason}"
        for loss in report.losses
        if loss.what == "error"
    ]
    lines += [
        f"{row.writer}: {count(row.bytes)} bytes unreadable in {plural(row.places, 'place')} ({row.reason})"
        for row in report.damage[:MOST_DAMAGED]
    ]
    if len(report.damage) > MOST_DAMAGED:
        lines.append(f"and {plural(len(report.damage) - MOST_DAMAGED, 'journal')} more with unreadable bytes")
    lines += clock_lines(report)
    return Text("\n".join(lines), style=WARNING) if lines else None
