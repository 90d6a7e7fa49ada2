"""The stage table of the terminal verdict."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from otel_rl import vocabulary as v
from otel_rl.report.data.report import Report, StageRow
from otel_rl.report.format import count, listed, percent, plural, seconds
from otel_rl.report.terminal.fitting import FittingTable, more
from otel_rl.report.terminal.style import BAR, NOTE

FIXED_WIDTH: Final = 72
"""Columns that the table takes besides the bars; the wider the terminal, the longer they are."""
NESTED_SHARE: Final = 0.005
"""Stages inside others have a row from this share of the step time; reward functions as stages of their own."""
LEAST_SHARE: Final = 0.001
"""Where more than ``FEW`` stages take less of the step time, these are only counted."""
FEW: Final = 8
MOST_ROWS: Final = 40
EIGHTHS: Final = " ▏▎▍▌▋▊▉"


def stage_table(report: Report, width: int) -> RenderableType | None:
    """Show where a step goes; None without any averaged step."""
    if not report.stages:
        return None
    table = FittingTable()
    table.name("stage")
    table.picture(min(24, max(8, width - FIXED_WIDTH)), BAR)
    table.numbers("share", "calls", "median", "p95", "total")
    largest = max(row.share for row in report.stages)
    rows, nested = _nested(report.stages)
    rows, folded = _fold(rows)
    for row in rows:
        part = 0.0 if row.inside or not largest else row.share / largest
        table.row(
            f"  {row.stage}" if row.inside else row.stage,
            partial(bar, part),
            percent(row.share),
            count(row.calls),
            seconds(row.median_s),
            seconds(row.p95_s),
            seconds(row.total_s),
            style=NOTE if row.inside or row.stage == v.OTHER else "",
        )
    lines = [more(len(folded), _how_small(folded))] if folded else []
    return Group(table, *lines, Text(_note(report, len(nested)), style=NOTE))


def _nested(rows: Sequence[StageRow]) -> tuple[list[StageRow], list[StageRow]]:
    """Split rows into those that a table may show, and small ones inside stages whose parts are only details."""
    shown: list[StageRow] = []
    hidden: list[StageRow] = []
    for row in rows:
        (shown if row.inside in (None, v.REWARD) or row.share >= NESTED_SHARE else hidden).append(row)
    return shown, hidden


def _fold(rows: Sequence[StageRow]) -> tuple[list[StageRow], list[StageRow]]:
    """Split rows into those that are shown and those that are only counted; names may be one per sample."""
    by_share = sorted((row for row in rows if row.stage != v.OTHER), key=lambda row: -row.share)
    large = sum(row.share >= LEAST_SHARE for row in by_share)
    kept = min(MOST_ROWS, len(by_share) if len(by_share) - large <= FEW else large)
    folded = {(row.inside, row.stage) for row in by_share[kept:]}
    shown: list[StageRow] = []
    left: list[StageRow] = []
    for row in rows:
        is_left = (row.inside, row.stage) in folded or (None, row.inside) in folded
        (left if is_left else shown).append(row)
    return shown, left


def _how_small(folded: Sequence[StageRow]) -> str:
    """Return how small each row is that is left out, and what they add up to."""
    largest = max(row.share for row in folded)
    each = f" below {percent(LEAST_SHARE)}" if largest < LEAST_SHARE else f", each at most {percent(largest)}"
    stages = {row.stage for row in folded if row.inside is None}
    together = sum(row.share for row in folded if row.inside not in stages)
    return f"{each}, together {percent(together)}" if len(folded) > 1 else each


def bar(share: float, width: int) -> str:
    """Draw a share of ``width`` as blocks, to an eighth of a column."""
    eighths = round(min(1.0, max(0.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (EIGHTHS[rest] if rest else "")


def _note(report: Report, nested: int) -> str:
    steps = report.steps
    text = f"{plural(steps.averaged, 'step')}: median {seconds(steps.median_s)}, p95 {seconds(steps.p95_s)}"
    if steps.warmup:
        text += f", without the first{f' {steps.warmup}' if steps.warmup > 1 else ''} after set-up"
    facts = ["Calls: all ranks; total: their mean"] if len(report.ranks) > 1 else []
    if nested:
        facts.append(f"{plural(nested, 'nested row')} below {percent(NESTED_SHARE)} left out")
    lines = [f"{text}.", *([f"{'; '.join(facts)}."] if facts else [])]
    if timed := list(dict.fromkeys(row.stage for row in report.stages if row.is_device_clock)):
        lines.append(f"{listed(timed)}: the device's times; where the host waits for it they count again.")
    return "\n".join(lines)
