"""The lines of the terminal verdict that show numbers over the steps: reward, stability, and the training's own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Final

from rich.console import Group, RenderableType

from otel_rl import vocabulary as v
from otel_rl.analysis.summary import sparkline
from otel_rl.report.data.report import Report, Series
from otel_rl.report.format import count, number
from otel_rl.report.terminal.fitting import FittingTable, more
from otel_rl.report.terminal.style import BAR, WARNING

TITLES: Final = {
    v.REWARD_SCORE: "reward",
    v.FUNCTION_SCORE: "reward",
    v.EVAL_REWARD: "evaluation reward",
    v.REWARD_ZERO_STD: "groups of equal reward",
    v.LOSS: "loss",
    v.LOSS_TERM: "loss",
    v.GRAD_NORM: "gradient norm",
    v.KL_REFERENCE: "KL to reference",
    v.KL_POLICY: "KL to old policy",
    v.ENTROPY: "entropy",
    v.CLIP_FRACTION: "clip fraction",
    v.RESPONSE_LENGTH: "response length",
    v.RESPONSE_CLIPPED: "responses cut",
    v.LEARNING_RATE: "learning rate",
}
"""What people call the series that are shown."""
LONGEST_LINE: Final = 48
MOST_ROWS: Final = 40
"""Lines over the steps that are shown; a framework may have a reward for each task."""
OWN_ROWS: Final = 12
"""Numbers of the training's own that are listed; JSON has them all."""
Number = tuple[str, tuple[float | None, ...], Series]
"""What a line is called, its numbers, and what its picture shows."""


def series_table(report: Report) -> RenderableType | None:
    """Show how reward, loss and stability went, one line each; None where nothing was recorded."""
    rows = [series for series in report.series if _is_shown(series)]
    shown = sorted(sorted(rows, key=_is_part)[:MOST_ROWS], key=_order)
    lines = [(_title(one), (one.first, one.last, one.low, one.high), one) for one in shown]
    return _table(("over the steps", "first", "last", "min", "max"), lines, len(rows) - len(shown))


def numbers_table(report: Report) -> RenderableType | None:
    """Show the numbers that the training recorded by itself, of many those with most values; None without any."""
    most = sorted(report.numbers, key=lambda one: -len(one.values))[:OWN_ROWS]
    shown = sorted(most, key=lambda one: one.name)
    lines = [(one.name, (one.last, one.mean, one.low, one.high), one) for one in shown]
    return _table(("your numbers", "last", "mean", "min", "max"), lines, len(report.numbers) - len(shown))


def _table(heads: tuple[str, ...], lines: Sequence[Number], left: int) -> RenderableType | None:
    """Lay lines out, and say how many more there are; the pictures take the width that is left."""
    if not lines:
        return None
    table = FittingTable()
    table.name(heads[0])
    table.numbers(*heads[1:])
    table.picture(LONGEST_LINE, BAR)
    table.fact("", WARNING)
    for name, numbers, series in lines:
        values = [math.nan if value is None else value for value in series.values]
        bad = f"{count(series.nonfinite)} NaN/Inf" if series.nonfinite else ""
        table.row(name, *map(number, numbers), partial(sparkline, values), bad)
    return Group(table, more(left, ", which --json has")) if left else table


def _is_shown(series: Series) -> bool:
    """Leave to JSON what has no title, and of evaluations all but their reward."""
    return series.name in TITLES and (not _is_evaluation(series) or series.name == v.EVAL_REWARD)


def _is_evaluation(series: Series) -> bool:
    return series.qualifiers.get(v.MODE) == "eval"


def _is_part(series: Series) -> bool:
    """Whether a series is of one function or task, of which there may be many."""
    return series.name == v.FUNCTION_SCORE


def _order(series: Series) -> tuple[int, int]:
    """Keep the order of the report, but put a series before its parts."""
    return list(TITLES).index(series.name), len(series.qualifiers)


def _title(series: Series) -> str:
    rest = [value for key, value in series.qualifiers.items() if key != v.MODE]
    return f"  {TITLES[series.name]} {' '.join(rest)}" if rest else TITLES[series.name]
