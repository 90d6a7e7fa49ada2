"""The numbers of every step: reward, loss and what distinguishes a stable run from an unstable one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.report.data.report import Report, Series
from otel_rl.report.rows.rule_file import kl_range
from otel_rl.report.section import Block, Column, Line, Section, Severity, Sparkline, Table, foremost, more, notes
from otel_rl.runs.format import count, number

TITLES: Final = {
    v.REWARD_SCORE: "reward",
    v.FUNCTION_SCORE: "reward",
    v.EVAL_REWARD: "evaluation reward",
    v.REWARD_ZERO_STD: "groups all equal",
    v.LOSS: "loss",
    v.LOSS_TERM: "loss",
    v.GRAD_NORM: "gradient norm",
    v.KL_REFERENCE: "KL to reference",
    v.KL_POLICY: "KL to old policy",
    v.ENTROPY: "entropy",
    v.CLIP_FRACTION: "clip fraction",
    v.RESPONSE_LENGTH: "response length",
    v.RESPONSE_CLIPPED: "cut at the limit",
    v.LEARNING_RATE: "learning rate",
    v.SAMPLE_LAG: "policy lag",
    v.LOGPROB_DIFFERENCE: "rollout and training apart",
}
LONGEST_LINE: Final = 48
MOST_ROWS: Final = 40
OWN_ROWS: Final = 12


def _series_blocks(report: Report) -> list[Block]:
    rows = [series for series in report.series if is_shown(series)]
    shown = foremost(rows, lambda one: one.name == v.FUNCTION_SCORE, MOST_ROWS)  # there may be many functions
    table = series_table("over the steps", "first", "last", "min", "max")
    for one in sorted(shown, key=lambda one: (list(TITLES).index(one.name), len(one.qualifiers))):
        add_series(table, title_of(one), (one.first, one.last, one.low, one.high), one)
    usual = f"KL to reference: {kl_range(report.rules.kl)}." if any(one.name == v.KL_REFERENCE for one in shown) else ""
    return [table, *more(len(rows) - len(shown)), *notes(usual)] if rows else []


def _number_blocks(report: Report) -> list[Block]:
    shown = foremost(report.numbers, lambda one: -len(one.values), OWN_ROWS)
    table = series_table("your numbers", "last", "mean", "min", "max")
    for one in shown:
        add_series(table, one.name, (one.last, one.mean, one.low, one.high), one)
    return [table, *more(len(report.numbers) - len(shown))] if shown else []


def series_table(name: str, *heads: str) -> Table:
    line, bad = Column("", "picture", LONGEST_LINE), Column("", "fact")
    return Table([Column(name, "name"), *map(Column, heads), line, bad])


def add_series(
    table: Table,
    name: str,
    numbers: Iterable[float | None],
    series: Series,
    write: Callable[[float], str] = number,
    mark: Severity | None = None,
    unusual: str = "",
) -> None:
    """Add the row of a series; what is not finite is said in red, a mark and the limit that is passed at the end."""
    values = [math.nan if value is None else value for value in series.values]
    missing = Line("NaN", "alarm") if values else "-"
    cells = [missing if value is None else write(value) for value in numbers]
    bad = f"{count(series.nonfinite)} NaN/Inf" if series.nonfinite else ""
    said = " ".join(filter(None, (bad, unusual, "!" if mark else "")))
    severity = mark or ("warning" if bad else "note")
    table.add(name, *cells, Sparkline(values), Line(said, severity) if said else "")


def is_shown(series: Series) -> bool:
    """Leave to JSON what has no title, a clip fraction or lag that is always 0, and of evaluations all but rewards."""
    if series.name in (v.CLIP_FRACTION, v.SAMPLE_LAG) and series.low == series.high == 0 and not series.nonfinite:
        return False
    return series.name in TITLES and (series.qualifiers.get(v.MODE) != "eval" or series.name == v.EVAL_REWARD)


def title_of(series: Series) -> str:
    rest = [value for key, value in series.qualifiers.items() if key != v.MODE]
    return f"  {TITLES[series.name]} {' '.join(rest)}" if rest else TITLES[series.name]


SERIES: Final = Section(title="Over the steps", blocks=_series_blocks)
NUMBERS: Final = Section(title="Your numbers", blocks=_number_blocks)
