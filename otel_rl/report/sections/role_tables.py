"""The processes of a single controller: who they are, the stages of each role, and the trajectories."""

from __future__ import annotations

from typing import Final

from otel_rl.report.data.report import Report
from otel_rl.report.data.roles import RoleRow, Trajectories, which
from otel_rl.report.section import Block, Column, Section, Table, more, notes
from otel_rl.runs.format import count, percent, plural, seconds
from otel_rl.runs.role_words import role_in_words

MOST_STAGES: Final = 12


def processes(report: Report) -> str:
    """Return which processes a run has, as in `1 driver, 2 actors (ranks), 1 agent loop`."""
    return ", ".join(_processes(row, report.missing_ranks) for row in report.roles)


def _processes(row: RoleRow, missing: int) -> str:
    name = _word(row)
    if not row.is_rank:
        return plural(row.processes, name)
    read = f"{count(row.processes)} of " if missing else ""
    return f"{read}{plural(row.processes + missing, name)} (ranks)"


def _word(row: RoleRow) -> str:
    return role_in_words(row.role).lower().replace("_", " ")


def _role_blocks(report: Report) -> list[Block]:
    rows = [row for row in report.roles if row.stages]
    if not rows:
        return []
    heads = map(Column, ("calls", "median", "p95", "longest", "total"))
    table = Table([Column("stages by role", "name"), *heads])
    left = 0
    for row in rows:
        table.add(_word(row), "", "", "", "", "")
        for stage in row.stages[:MOST_STAGES]:
            times = (stage.median_s, stage.p95_s, stage.longest_s, stage.total_s)
            table.add(f"  {stage.stage}", count(stage.calls), *map(seconds, times), severity="note")
        left += max(0, len(row.stages) - MOST_STAGES)
    return [table, *more(left), *notes("Calls of all processes in all steps; those inside others count there, too.")]


def _trajectory_blocks(report: Report) -> list[Block]:
    found = report.trajectories
    if found is None:
        return []
    heads = ("count", "median", "p95", "longest", "prompt tok.", "response tok.")
    table = Table.of("trajectories", *heads)
    times = map(seconds, (found.median_s, found.p95_s, found.longest_s))
    tokens = (count(number) if number else "-" for number in (found.prompt_tokens, found.response_tokens))
    table.add("training", count(found.trajectories), *times, *tokens)
    if found.evaluated:
        table.add("evaluation", count(found.evaluated), *[""] * (len(heads) - 1))
    held = [
        f"{which(one.sample, one.group)} held step {one.step} for {seconds(one.held_s)} ({percent(one.share)})"
        for one in found.held
    ]
    longest = f"Longest: {which(found.longest_sample, found.longest_group)}." if found.longest_sample else ""
    return [table, *notes(longest, _waits(found), *(f"{line[0].upper()}{line[1:]}." for line in held))]


def _waits(found: Trajectories) -> str:
    if found.generating_s is None or found.late_s is None:
        return ""
    late = f"{seconds(found.late_s)} after the last had ended"
    return f"In a mean step the driver waits {seconds(found.generating_s)} while they go on, and {late}."


ROLES: Final = Section(title="Roles", blocks=_role_blocks)
TRAJECTORIES: Final = Section(title="Trajectories", blocks=_trajectory_blocks)
