"""The stage table of the terminal verdict."""

from __future__ import annotations

from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from otel_rl import vocabulary as v
from otel_rl.report.format import count, listed, percent, plural, seconds
from otel_rl.report.model import Report, StageRow
from otel_rl.report.style import BAR, NOTE, plain_table

FIXED_WIDTH: Final = 72
"""Columns that the table takes besides the bars; the wider the terminal, the longer they are."""
NESTED_SHARE: Final = 0.005
"""Stages inside others have a row from this share of the step time; reward functions always."""
EIGHTHS: Final = " ▏▎▍▌▋▊▉"


def stage_table(report: Report, width: int) -> RenderableType | None:
    """Show where a step goes; None without any averaged step."""
    if not report.stages:
        return None
    table = plain_table()
    bar_width = min(24, max(8, width - FIXED_WIDTH))
    table.add_column("stage", no_wrap=True)
    table.add_column("", width=bar_width, no_wrap=True)
    for name in ("share", "calls", "median", "p95", "total"):
        table.add_column(name, justify="right", no_wrap=True)
    largest = max(row.share for row in report.stages)
    for row in filter(_is_shown, report.stages):
        style = NOTE if row.inside or row.stage == v.OTHER else ""
        table.add_row(
            f"  {row.stage}" if row.inside else row.stage,
            Text("" if row.inside else bar(row.share / largest if largest else 0.0, bar_width), style=BAR),
            percent(row.share),
            count(row.calls),
            seconds(row.median_s),
            seconds(row.p95_s),
            seconds(row.total_s),
            style=style,
        )
    return Group(table, Text(_note(report), style=NOTE))


def _is_shown(row: StageRow) -> bool:
    return row.inside in (None, v.REWARD) or row.share >= NESTED_SHARE


def bar(share: float, width: int) -> str:
    """Draw a share of ``width`` as blocks, to an eighth of a column."""
    eighths = round(min(1.0, max(0.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (EIGHTHS[rest] if rest else "")


def _note(report: Report) -> str:
    steps = report.steps
    text = f"{plural(steps.averaged, 'step')}: median {seconds(steps.median_s)}, p95 {seconds(steps.p95_s)}"
    if steps.warmup:
        text += f", without the first{f' {steps.warmup}' if steps.warmup > 1 else ''} after set-up"
    more = ["Calls: all ranks; total: their mean"] if len(report.ranks) > 1 else []
    if hidden := sum(not _is_shown(row) for row in report.stages):
        more.append(f"{plural(hidden, 'nested row')} below {percent(NESTED_SHARE)} left out")
    lines = [f"{text}.", *([f"{'; '.join(more)}."] if more else [])]
    if timed := list(dict.fromkeys(row.stage for row in report.stages if row.is_device_clock)):
        lines.append(f"{listed(timed)}: the device's times; where the host waits for it they count again.")
    return "\n".join(lines)
