"""Throughput, and what each rank handled and held in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from otel_rl.report.format import count, number, size
from otel_rl.report.model import Rate, Report, Wall, WorkRow
from otel_rl.report.style import NOTE, plain_table, rank_name

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
    table = plain_table()
    table.add_column("with spans" if report.unseen_steps else "in all steps", no_wrap=True)
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
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for row in report.work:
        numbers = [value_of(row) for value_of in columns.values()]
        cells = ["-" if value is None else count(value) for value in numbers]
        table.add_row(rank_name(report, row.role, row.rank), *cells)
    note = f"{WORK_NOTE} {ENVIRONMENT_NOTE}" if has_environment else WORK_NOTE
    return Group(table, Text(note, style=NOTE))


def memory_table(report: Report) -> RenderableType | None:
    """Show the highest memory of each rank and the stage that last raised it."""
    if not report.memory:
        return None
    table = plain_table()
    table.add_column("memory", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    table.add_column("peak", justify="right", no_wrap=True)
    table.add_column("last raised by")
    for row in report.memory:
        where = f", step {row.iteration}" if row.iteration is not None else ""
        table.add_row(
            rank_name(report, row.role, row.rank),
            row.kind,
            f"{'' if row.is_exact else '>= '}{size(row.bytes)}",
            f"{row.stage}{where}",
        )
    return table
