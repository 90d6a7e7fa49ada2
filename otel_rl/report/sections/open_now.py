"""Where each rank is now, or was last seen: the stages that are open."""

from __future__ import annotations

from typing import Final

from otel_rl import vocabulary as v
from otel_rl.report.data.details import OpenCollective, OpenStageRow
from otel_rl.report.data.report import Report
from otel_rl.report.section import Block, Line, Section, attempt_name, notes, rank_name
from otel_rl.runs.format import clock, count, seconds
from otel_rl.runs.spans import is_container

MOST_OPEN: Final = 16
LAG_S: Final = 1.0
"""The journal is at most this late (docs/failures.md), so a shorter time says nothing."""


def _is_hanging(report: Report) -> bool:
    return any(row.is_hanging for row in report.open_stages)


def _has_more(report: Report) -> bool:
    """Return whether there is more to say than what HEALTH says of one rank."""
    return len(report.open_stages) > 1 or any(row.collective is not None for row in report.open_stages)


def _open_lines(report: Report) -> list[Block]:
    return _lines(report, sorted(report.open_stages, key=lambda row: (-row.is_hanging, -row.open_s)))


def _pending_lines(report: Report) -> list[Block]:
    if not report.pending:
        return []
    are = f"{count(len(report.pending))} {'is' if len(report.pending) == 1 else 'are'}"
    head = f"Of the processes that began with this run {are} in no run and may belong to it:"
    rows = [row for one in report.pending for row in one.open_stages]
    return [Line(head, "warning"), *_lines(report, sorted(rows, key=lambda row: (row.role, row.rank)))]


def _lines(report: Report, rows: list[OpenStageRow]) -> list[Block]:
    left = len(rows) - MOST_OPEN
    return [*(_line(report, row) for row in rows[:MOST_OPEN]), *notes(f"and {left} more" if left > 0 else "")]


def _line(report: Report, row: OpenStageRow) -> Line:
    who, time = rank_name(report, row), seconds(row.open_s)
    where = _where(row) + attempt_name(report, row.attempt)
    since = f"{time} (since {clock(row.since_ns)})"
    if not row.is_alive and row.is_certain:
        lasted = f"for at least {since}" if row.open_s else f"since {clock(row.since_ns)}"
        return Line(f"{who} was in {where} when it died; it had been open {lasted}", "warning")
    if not row.is_alive:
        seen = f"{who} was last seen in {where}, at most {LAG_S:.0f} s before it died"
        return Line(f"{seen}; it was open for at least {since}", "warning")
    if row.is_hanging:
        longest = f"the longest that ended took {seconds(row.longest_s or 0.0)}"
        return Line(f"{who} may hang: in {where}, for {since}; {longest}", "warning")
    if row.open_s < LAG_S:
        return Line(f"{who} is in {where}")
    is_first = row.longest_s is None and row.calls_known
    return Line(f"{who} is in {where}, {time} so far" + ("; no call of it has ended yet" if is_first else ""))


def _where(row: OpenStageRow) -> str:
    """Return where a rank is; what is no stage is its step, or else set-up or tear-down."""
    step = [f"step {row.iteration}"] if row.iteration is not None else []
    if is_container(row.stage) or row.stage == v.LOOP:
        return ", ".join([*(step or row.inside or ["no step"]), "under no stage"])
    stage = row.stage if row.collective is None else f"{row.stage} {_which(row.collective)}"
    return ", ".join([stage, *(f"in {outer}" for outer in reversed(row.inside)), *step])


def _which(collective: OpenCollective) -> str:
    of = f" of {collective.group}" if collective.group else ""
    ranks = f", {collective.group_size} ranks" if collective.group_size else ""
    number = f" {collective.sequence}" if collective.sequence else ""
    return f"({collective.operation}{number}{of}{ranks})"


HANGING: Final = Section(
    title="Hanging", blocks=lambda report: _open_lines(report) if _is_hanging(report) and _has_more(report) else []
)
OPEN_STAGES: Final = Section(
    title="Open stages",
    blocks=lambda report: [] if _is_hanging(report) else _open_lines(report),
)
PENDING: Final = Section(
    title="Processes in no run",
    blocks=_pending_lines,
)
