"""Where each rank is now, or was last seen: the lines of the stages that are open."""

from __future__ import annotations

from typing import Final

from rich.text import Text

from otel_rl import vocabulary as v
from otel_rl.report.data.open_stages import OpenCollective, OpenStage
from otel_rl.report.data.report import Report
from otel_rl.report.format import clock, count, seconds
from otel_rl.report.read.attributes import is_container
from otel_rl.report.terminal.style import NOTE, WARNING, attempt_name, rank_name

ROWS: Final = 16
"""Open stages that are listed; a cluster that hangs has one per rank."""
LAG_S: Final = 1.0
"""The journal is at most this late (docs/failures.md), so a shorter time says nothing."""


def open_lines(report: Report) -> Text | None:
    """Name the innermost open stages, those that may hang first, then by their time; None where none is open."""
    rows = sorted(report.open_stages, key=lambda row: (-row.is_hanging, -row.open_s))
    return Text("\n").join(_lines(report, rows)) if rows else None


def pending_lines(report: Report) -> Text | None:
    """Say that processes which began with the run are in none, and where they are; None where there is none."""
    if not report.pending:
        return None
    are = f"{count(len(report.pending))} {'is' if len(report.pending) == 1 else 'are'}"
    head = f"Of the processes that began with this run {are} in no run and may belong to it:"
    rows = [row for one in report.pending for row in one.open_stages]
    rows.sort(key=lambda row: (row.role, row.rank))
    return Text("\n").join([Text(head, style=WARNING), *_lines(report, rows)])


def _lines(report: Report, rows: list[OpenStage]) -> list[Text]:
    more = [Text(f"and {len(rows) - ROWS} more", style=NOTE)] if len(rows) > ROWS else []
    return [*(_line(report, row) for row in rows[:ROWS]), *more]


def _line(report: Report, row: OpenStage) -> Text:
    who, time = rank_name(report, row.role, row.rank), seconds(row.open_s)
    where = _where(row) + attempt_name(report, row.attempt)
    since = f"{time} (since {clock(row.since_ns)})"
    if not row.is_alive:
        seen = f"{who} was last seen in {where}, at most {LAG_S:.0f} s before it died"
        return Text(f"{seen}; it was open for at least {since}", style=WARNING)
    if row.is_hanging:
        longest = f"the longest that ended took {seconds(row.longest_s or 0.0)}"
        return Text(f"{who} may hang: in {where}, for {since}; {longest}", style=WARNING)
    if row.open_s < LAG_S:
        return Text(f"{who} is in {where}")
    is_first = row.longest_s is None and row.calls_known
    return Text(f"{who} is in {where}, {time} so far" + ("; no call of it has ended yet" if is_first else ""))


def _where(row: OpenStage) -> str:
    """Say where a rank is; what is no stage is its step, or else set-up or tear-down."""
    step = [f"step {row.iteration}"] if row.iteration is not None else []
    if is_container(row.stage) or row.stage == v.LOOP:
        return ", ".join([*(step or row.inside or ["no step"]), "under no stage"])
    stage = row.stage if row.collective is None else f"{row.stage} {_which(row.collective)}"
    return ", ".join([stage, *(f"in {outer}" for outer in reversed(row.inside)), *step])


def _which(collective: OpenCollective) -> str:
    """Name a collective so that it can be told whether another rank is in the same one."""
    of = f" of {collective.group}" if collective.group else ""
    ranks = f", {collective.group_size} ranks" if collective.group_size else ""
    number = f" {collective.sequence}" if collective.sequence else ""
    return f"({collective.operation}{number}{of}{ranks})"
