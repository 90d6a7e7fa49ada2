"""What each rank did, who holds the others up and what it costs, in the terminal verdict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from otel_rl import vocabulary as v
from otel_rl.report.data.efficiency import UNTOLD, BubbleRow, RankTime
from otel_rl.report.data.report import Report
from otel_rl.report.format import count, percent, plural, seconds
from otel_rl.report.terminal.fitting import MOST_RANKS, FittingTable
from otel_rl.report.terminal.style import NOTE, WARNING, rank_name

MOST_SLOW: Final = 16
"""Lines about slow ranks; JSON has all."""
COLUMNS: Final[tuple[tuple[str, Callable[[RankTime], float | None], Callable[[float], str]], ...]] = (
    ("pp", lambda row: row.pipeline, "{:.0f}".format),
    ("active", lambda row: row.active_s, seconds),
    ("wait", lambda row: row.wait_s, seconds),
    ("transfer", lambda row: row.transfer_s, seconds),
    ("hidden", lambda row: row.inseparable_s, seconds),
    ("idle", lambda row: row.idle_s, seconds),
    ("other", lambda row: row.other_s, seconds),
    ("score", lambda row: row.relative_score, "{:.2f}".format),
    ("S", lambda row: row.slowdown, "{:.2f}".format),
)
"""Heading, number, how it is written. A column without any number, or of zeros only, is left out; the last ones also
where the terminal is too narrow."""
HEADING: Final = "mean step"
BOUNDS: Final = {"wait": ">=", "transfer": "<="}
"""What is written before numbers that are not known exactly."""
NOTES: Final = {
    "pp": "pp: pipeline stage, ranks are compared inside it",
    "wait": "wait: in collectives, for slower ranks",
    "transfer": "transfer: the rest in collectives, waits in large broadcasts included",
    "hidden": "hidden: in stages that hide collectives or measure launches only",
    "score": "score: own times against the fastest rank, 0.5 takes twice as long",
    "S": "S: a step with this rank as it is and the others balanced, over a balanced one",
}


def rank_table(report: Report, width: int) -> RenderableType | None:
    """Show where the time of each rank went, and the bubbles; None where there is nothing to compare or to say."""
    times = report.efficiency
    parts: list[RenderableType] = []
    if len(times.ranks) > 1:
        parts.append(_times(report, times.ranks, width))
    parts += [Text(line, style=WARNING) for line in _slow(report)]
    if any(row.share >= 0.0005 for row in times.bubbles):
        parts.append(Text(f"Bubbles of the step time: {', '.join(map(_bubble, times.bubbles))}."))
    return Group(*parts) if parts else None


def _times(report: Report, rows: list[RankTime], width: int) -> RenderableType:
    # of many ranks those that waited least: for them the others wait
    shown = sorted(sorted(rows, key=lambda row: row.wait_s)[:MOST_RANKS], key=lambda row: (row.role, row.rank))
    columns = [column for column in COLUMNS if any(column[1](row) for row in rows)]
    table = FittingTable()
    table.name(HEADING)
    table.numbers(*(name for name, _, _ in columns))
    for row in shown:
        bounds = {} if row.is_wait_exact else BOUNDS
        cells = [
            f"{bounds.get(head, '')}{'-' if (value := read(row)) is None else write(value)}"
            for head, read, write in columns
        ]
        table.row(rank_name(report, row.role, row.rank), *cells)
    notes = [NOTES[name] for name in table.heads(width) if name in NOTES]
    if not all(row.is_wait_exact for row in rows):
        notes.append(f">=, <=: {UNTOLD}")
    if len(shown) < len(rows):
        notes.insert(0, f"{plural(len(rows) - len(shown), 'rank')} that waited longer left out")
    return Group(table, Text(f"{'; '.join(notes)}." if notes else "", style=NOTE))


def _slow(report: Report) -> list[str]:
    """Say who is slow, how often, and what that costs."""
    times = report.efficiency
    lines = [
        f"{rank_name(report, row.role, row.rank)} costs {seconds(row.cost_s)} per step in {row.stage}, "
        f"{percent(row.share)} of the {row.of_step}: slow in {count(row.slow_steps)} of {plural(row.steps, 'step')}"
        for row in times.stragglers[:MOST_SLOW]
    ]
    if len(times.stragglers) > MOST_SLOW:
        lines.append(f"and {count(len(times.stragglers) - MOST_SLOW)} more are slow, which --json has")
    lines += [
        f"Collectives {'under no stage' if row.stage == v.COMM else f'inside {row.stage}'} take "
        f"{seconds(row.transfer_s)} per step, {percent(row.share)}, on every rank{times.of_stage(row.pipeline)} alike: "
        "slow communication"
        for row in times.slow_communication
    ]
    return [f"{line[0].upper()}{line[1:]}." for line in lines]


def _bubble(row: BubbleRow) -> str:
    return f"{row.kind} {'' if row.is_exact else '>='}{percent(row.share)}"
