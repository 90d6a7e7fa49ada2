"""The lines of the terminal verdict that show numbers over the steps: reward, stability, and the training's own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from otel_rl import vocabulary as v
from otel_rl.analysis.trend import sparkline
from otel_rl.report.format import number, shorten
from otel_rl.report.model import Report, Series
from otel_rl.report.style import BAR, NOTE, WARNING, plain_table

TITLES: Final = {
    v.REWARD_SCORE: "reward",
    v.EVAL_REWARD: "evaluation reward",
    v.REWARD_ZERO_STD: "groups of equal reward",
    v.LOSS: "loss",
    v.GRAD_NORM: "gradient norm",
    v.KL_REFERENCE: "KL to reference",
    v.KL_POLICY: "KL to old policy",
    v.ENTROPY: "entropy",
    v.CLIP_FRACTION: "clip fraction",
    v.RESPONSE_LENGTH: "response length",
    v.RESPONSE_CLIPPED: "responses cut",
    v.LEARNING_RATE: "learning rate",
}
"""What people call the series."""
GAP: Final = 2
"""Columns between two cells."""
LEAST_LINE: Final = 8
"""Width of the pictures at least."""
LONGEST_LINE: Final = 48
OWN_ROWS: Final = 12
"""Numbers of the training's own that are listed; JSON has them all."""
Number = tuple[str, tuple[float | None, ...], Series]
"""What a line is called, its numbers, and what its picture shows."""


def series_table(report: Report, width: int) -> RenderableType | None:
    """Show how reward, loss and stability went, one line each; None where nothing was recorded."""
    rows = sorted((series for series in report.series if _is_shown(series)), key=_order)
    lines = [(_title(one), (one.first, one.last, one.low, one.high), one) for one in rows]
    return _table(("over the steps", "first", "last", "min", "max"), lines, width) if lines else None


def numbers_table(report: Report, width: int) -> RenderableType | None:
    """Show the numbers that the training recorded by itself, one line each; None where there is none."""
    lines = [(one.name, (one.last, one.mean, one.low, one.high), one) for one in report.numbers[:OWN_ROWS]]
    if not lines:
        return None
    table = _table(("your numbers", "last", "mean", "min", "max"), lines, width)
    left_out = len(report.numbers) - len(lines)
    return Group(table, Text(f"and {left_out} more, which --json has", style=NOTE)) if left_out else table


def _table(heads: tuple[str, ...], lines: Sequence[Number], width: int) -> RenderableType:
    """Lay lines out; the pictures take the width that is left, names are shortened where none is."""
    texts = [tuple(map(number, numbers)) for _, numbers, _ in lines]
    bad = [f"{series.nonfinite} NaN/Inf" if series.nonfinite else "" for _, _, series in lines]
    taken = [max(map(len, column)) for column in zip(heads[1:], *texts, strict=True)] + [max(map(len, bad))]
    room = width - sum(taken) - GAP * (len(taken) + 1)
    names = [shorten(name, max(len(heads[0]), room - LEAST_LINE)) for name, _, _ in lines]
    line_width = min(LONGEST_LINE, max(LEAST_LINE, room - max(map(len, (heads[0], *names)))))
    table = plain_table()
    table.add_column(heads[0], no_wrap=True)
    for head in heads[1:]:
        table.add_column(head, justify="right", no_wrap=True)
    for _ in range(2):
        table.add_column("", no_wrap=True)
    for name, cells, warning, (_, _, series) in zip(names, texts, bad, lines, strict=True):
        values = [math.nan if value is None else value for value in series.values]
        table.add_row(name, *cells, Text(sparkline(values, line_width), style=BAR), Text(warning, style=WARNING))
    return table


def _is_shown(series: Series) -> bool:
    """Leave to JSON what is no mean, the sides of the clip fraction, and of evaluations all but their reward."""
    if series.qualifiers.get(v.STATISTIC, "mean") != "mean" or series.qualifiers.get(v.CLIP_SIDE, "region") != "region":
        return False
    return not _is_evaluation(series) or (series.name == v.REWARD_SCORE and v.REWARD_FUNCTION not in series.qualifiers)


def _is_evaluation(series: Series) -> bool:
    return series.qualifiers.get(v.MODE) == "eval"


def _order(series: Series) -> tuple[int, bool, int]:
    """Keep the order of the report, but put a series before its parts and training before evaluation."""
    return list(TITLES).index(series.name), _is_evaluation(series), len(series.qualifiers)


def _title(series: Series) -> str:
    if _is_evaluation(series):
        return TITLES[v.EVAL_REWARD]
    plain = ((v.STATISTIC, "mean"), (v.CLIP_SIDE, "region"), (v.LOSS_TYPE, "total"))
    rest = [value for key, value in series.qualifiers.items() if (key, value) not in plain]
    return f"  {TITLES[series.name]} {' '.join(rest)}" if rest else TITLES[series.name]
