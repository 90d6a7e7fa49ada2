"""The reward and stability lines of the terminal verdict."""

from __future__ import annotations

import math
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from otel_rl import vocabulary as v
from otel_rl.analysis.trend import sparkline
from otel_rl.report.format import number
from otel_rl.report.model import Report, Series
from otel_rl.report.style import BAR, WARNING, plain_table

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
HEADS: Final = ("first", "last", "min", "max")


def series_table(report: Report, width: int) -> RenderableType | None:
    """Show how reward, loss and stability went, one line each; None where nothing was recorded."""
    rows = sorted((series for series in report.series if _is_shown(series)), key=_order)
    if not rows:
        return None
    cells = [(_title(series), *map(number, (series.first, series.last, series.low, series.high))) for series in rows]
    heads = ("over the steps", *HEADS)
    bad = [f"{series.nonfinite} NaN/Inf" if series.nonfinite else "" for series in rows]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)] + [max(map(len, bad))]
    line_width = min(48, max(8, width - sum(widths) - GAP * (len(widths) + 1)))
    table = plain_table()
    table.add_column(heads[0], no_wrap=True)
    for name in HEADS:
        table.add_column(name, justify="right", no_wrap=True)
    for _ in range(2):
        table.add_column("", no_wrap=True)
    for series, texts, warning in zip(rows, cells, bad, strict=True):
        values = [math.nan if value is None else value for value in series.values]
        table.add_row(*texts, Text(sparkline(values, line_width), style=BAR), Text(warning, style=WARNING))
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
