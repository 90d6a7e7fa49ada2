"""Throughput, and what each rank handled and held in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from otel_rl.report.data.report import MemoryPeak, Rate, Report, Wall, WorkRow
from otel_rl.report.format import count, number, size
from otel_rl.report.terminal.fitting import MOST_RANKS, FittingTable, more
from otel_rl.report.terminal.style import NOTE, rank_name

WORK_NOTE: Final = "As generated for training; padding and trained tok. (those the loss uses) of all forwards."
ENVIRONMENT_NOTE: Final = "env.: tokens that tools or an environment wrote into the responses."

WALLS: Final[dict[Wall, str]] = {"step": "per step time", "stage": "per rollout time"}


def rate_lines(report: Report) -> list[str]:
    """Say how fast the run is, one line per wall time; each rate names its kind."""
    walls = {wall: [_rate(rate) for rate in report.rates if rate.wall == wall] for wall in WALLS}
    return [f"{WALLS[wall]}: {', '.join(rates)}" for wall, rates in walls.items() if rates]


def _rate(rate: Rate) -> str:
    value = count(rate.per_second) if rate.per_second >= 100 else number(rate.per_second)
    return f"{value} {'trained tokens' if rate.work == 'train' else rate.unit}/s"


def work_table(report: Report) -> RenderableType | None:
    """Show what each rank generated and trained on; None where nothing was counted."""
    if not any(row.samples or row.train_tokens or row.response_tokens for row in report.work):
        return None
    table = FittingTable()
    columns: dict[str, Callable[[WorkRow], int | None]] = {
        "samples": lambda row: row.samples,
        "prompt tok.": lambda row: row.prompt_tokens,
        "response tok.": lambda row: row.response_tokens,
        "env.": lambda row: row.environment_tokens,
        "padding": lambda row: row.padding_tokens,
        "trained tok.": lambda row: row.train_tokens,
    }
    has_environment = any(row.environment_tokens for row in report.work)
    if not has_environment:
        del columns["env."]
    table.name("with spans" if report.unseen_steps else "in all steps")
    table.numbers(*columns)
    most = sorted(report.work, key=lambda row: -row.train_tokens)[:MOST_RANKS]
    for row in sorted(most, key=lambda row: (row.role, row.rank)):
        numbers = [value_of(row) for value_of in columns.values()]
        cells = ["-" if value is None else count(value) for value in numbers]
        table.row(rank_name(report, row.role, row.rank), *cells)
    note = f"{WORK_NOTE} {ENVIRONMENT_NOTE}" if has_environment else WORK_NOTE
    return Group(table, *_more(len(report.work) - len(most)), Text(note, style=NOTE))


def memory_table(report: Report) -> RenderableType | None:
    """Show the highest memory of each rank and the stage that last raised it."""
    if not report.memory:
        return None
    table = FittingTable()
    table.name("memory")
    table.fact("kind")
    table.numbers("peak")
    table.name("last raised by")
    rows = _highest(report.memory)
    for row in rows:
        where = f", step {row.iteration}" if row.iteration is not None else ""
        table.row(
            rank_name(report, row.role, row.rank),
            row.kind,
            f"{'' if row.is_exact else '>= '}{size(row.bytes)}",
            f"{row.stage}{where}",
        )
    return Group(table, *_more(len(report.memory) - len(rows)))


def _highest(rows: Sequence[MemoryPeak]) -> list[MemoryPeak]:
    """Choose the highest peaks of each kind, in the order in which they are given."""
    shown: set[int] = set()
    for kind in {row.kind for row in rows}:
        places = [place for place, row in enumerate(rows) if row.kind == kind]
        shown.update(sorted(places, key=lambda place: -rows[place].bytes)[:MOST_RANKS])
    return [rows[place] for place in sorted(shown)]


def _more(left: int) -> list[Text]:
    return [more(left, ", which --json has")] if left else []
