"""Goodput: the wall time of every attempt by kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from otel_rl.report.data.report import Report
from otel_rl.report.data.time_use import GoodputKind, GoodputRow
from otel_rl.report.section import Block, Section, Table, notes
from otel_rl.runs.format import percent, plural, seconds

NOTES: Final[dict[GoodputKind, str]] = {
    "productive": "rollout to update",
    "overhead": "set-up, weight sync, checkpoints, evaluation, logs",
    "idle": "waits",
    "wasted": "steps made again, skipped updates",
    "other": "stages of your own, and what is in none",
}
LEAST_NOTE: Final = ">=: more may be waits in collectives, so productive, overhead and other may be less."
MOST_ATTEMPTS: Final = 4


def _blocks(report: Report) -> list[Block]:
    if not report.efficiency.goodput:
        return []
    *attempts, everything = report.efficiency.goodput
    table = _table(attempts, everything, MOST_ATTEMPTS if len(attempts) > 1 else 0)
    ranks = f" of {plural(everything.ranks, 'rank')} together" if everything.ranks > 1 else ""
    share = everything.padding_share
    padding = "" if share is None else f" {percent(share)} of the trained positions are padding."
    least = "" if everything.is_idle_exact else f" {LEAST_NOTE}"
    kinds = "; ".join(f"{part.kind}: {NOTES[part.kind]}" for part in everything.parts if part.time_ns)
    return [table, *notes(f"Wall time{ranks}: {seconds(everything.wall_ns / 1e9)}; {kinds}.{least}{padding}")]


def _table(attempts: Sequence[GoodputRow], everything: GoodputRow, most: int) -> Table:
    """Make a table with a column for each of the last attempts, with fewer of them if it is too narrow."""
    first = max(0, len(attempts) - most)
    shown = attempts[first:]
    table = Table.of("goodput", "time", "share", *(f"attempt {first + place}" for place in range(1, len(shown) + 1)))
    for place, part in enumerate(everything.parts):
        if part.time_ns:
            shares = [percent(row.parts[place].share) for row in shown]
            least = "" if everything.is_idle_exact or part.kind != "idle" else ">="
            table.add(part.kind, least + seconds(part.time_ns / 1e9), least + percent(part.share), *shares)
        if part.kind == "overhead" and everything.setup_ns:
            setups = [percent(row.setup_ns / (row.wall_ns or 1)) for row in (everything, *shown)]
            table.add("  set-up", seconds(everything.setup_ns / 1e9), *setups)
    table.narrow = _table(attempts, everything, most - 1) if most else None
    return table


GOODPUT: Final = Section(title="Goodput", blocks=_blocks)
