"""Goodput in the terminal verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from otel_rl.report.data.efficiency import GoodputRow
from otel_rl.report.data.report import Report
from otel_rl.report.format import percent, plural, seconds
from otel_rl.report.terminal.fitting import FittingTable
from otel_rl.report.terminal.style import NOTE

NOTE_TEXT: Final = (
    "productive: rollout to update; overhead: set-up, weight sync, checkpoints, evaluation, logs; idle: waits; wasted: "
    "steps made again, skipped updates; other: stages of your own, and what is in none."
)
LEAST_TEXT: Final = ">=: more may be waits in collectives, so productive, overhead and other may be less."
MOST_ATTEMPTS: Final = 4
"""Attempts that have a column of their own, the last ones."""


def goodput_table(report: Report, width: int) -> RenderableType | None:
    """Show the wall time of all ranks by kind; None where no time was recorded."""
    rows = report.efficiency.goodput
    if not rows:
        return None
    *attempts, whole = rows
    most = MOST_ATTEMPTS if len(attempts) > 1 else 0
    while not (table := _table(attempts, whole, most)).fits(width) and most:
        most -= 1
    return Group(table, Text(_note(whole), style=NOTE))


def _table(attempts: Sequence[GoodputRow], whole: GoodputRow, most: int) -> FittingTable:
    """Lay it out, with a column for each of the last attempts."""
    first = max(0, len(attempts) - most)
    shown = attempts[first:]
    table = FittingTable()
    table.name("goodput")
    table.numbers("time", "share", *(f"attempt {first + place}" for place in range(1, len(shown) + 1)))
    for place, part in enumerate(whole.parts):
        if part.time_ns:
            shares = [percent(row.parts[place].share) for row in shown]
            least = "" if whole.is_idle_exact or part.kind != "idle" else ">="
            table.row(part.kind, least + seconds(part.time_ns / 1e9), least + percent(part.share), *shares)
    return table


def _note(whole: GoodputRow) -> str:
    ranks = f" of {plural(whole.ranks, 'rank')} together" if whole.ranks > 1 else ""
    share = whole.padding_share
    padding = "" if share is None else f" {percent(share)} of the trained positions are padding."
    least = "" if whole.is_idle_exact else f" {LEAST_TEXT}"
    return f"Wall time{ranks}: {seconds(whole.wall_ns / 1e9)}; {NOTE_TEXT}{least}{padding}"
