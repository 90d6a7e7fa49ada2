"""The learning curves of the screen: reward first, and a mark at what a finding names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.findings.health import HEALTH
from otel_rl.findings.learning import LEARN
from otel_rl.findings.rule import Finding
from otel_rl.report.data.report import Report, Series
from otel_rl.report.section import Block, Section, Severity, foremost, more
from otel_rl.report.sections.step_series import add_series, is_shown, series_table, title_of
from otel_rl.runs.format import percent

ORDER: Final = (
    v.REWARD_SCORE, v.FUNCTION_SCORE, v.EVAL_REWARD, v.REWARD_ZERO_STD, v.KL_REFERENCE, v.ENTROPY, v.GRAD_NORM,
    v.RESPONSE_LENGTH, v.RESPONSE_CLIPPED, v.LOSS, v.KL_POLICY, v.CLIP_FRACTION, v.LEARNING_RATE,
)  # fmt: skip
"""Order of the rows."""
ONLY_MARKED: Final = (v.KL_POLICY, v.CLIP_FRACTION, v.LEARNING_RATE)
SHARES: Final = (v.REWARD_ZERO_STD, v.RESPONSE_CLIPPED, v.CLIP_FRACTION)
MOST_ROWS: Final = 10
MOST_OWN: Final = 4
READS: Final = {rule.name: rule.reads for table in (LEARN, HEALTH) for rule in table}


def _blocks(report: Report) -> list[Block]:
    marks = {id(one): mark for one in report.series if (mark := _mark(report, one))}
    rows = sorted(_rows(report, marks), key=lambda one: (ORDER.index(one.name), len(one.qualifiers)))
    most = MOST_ROWS if len(rows) <= MOST_ROWS else MOST_ROWS - 1
    shown = foremost(rows, lambda one: (id(one) not in marks, one.name == v.FUNCTION_SCORE), most)
    own = report.numbers if len(report.numbers) <= min(MOST_OWN, most - len(shown)) else []
    table = series_table("learning", "first", "last", "min", "max")
    for one in shown:
        add_series(table, title_of(one), (one.first, one.last, one.low, one.high), one, _write(one), marks.get(id(one)))
    for one in own:
        add_series(table, one.name, (one.first, one.last, one.low, one.high), one, short)
    left = len(rows) - len(shown) + len(report.numbers) - len(own)
    return [table, *more(left, ": --all")] if shown or own else []


def _rows(report: Report, marks: Mapping[int, Severity]) -> Iterator[Series]:
    has_reward = any(one.name in (v.REWARD_SCORE, v.FUNCTION_SCORE) for one in report.series)
    for one in report.series:
        is_left_out = one.name in ONLY_MARKED or (has_reward and one.name == v.LOSS)
        if one.name in ORDER and is_shown(one) and (id(one) in marks or not is_left_out):
            yield one


def _mark(report: Report, series: Series) -> Severity | None:
    """Return the severity of the worst finding that names a series."""
    found = [
        finding
        for severity in ("alarm", "warning")
        for finding in (*report.findings.learn, *report.findings.health)
        if finding.severity == severity and series.name in READS.get(finding.rule, ())
    ]
    own = next((one.severity for one in found if _is_about(report, one, series)), None)
    return "alarm" if own == "alarm" else "warning" if own else None


def _is_about(report: Report, finding: Finding, series: Series) -> bool:
    """Whether a finding names this series, or none of those with the same name."""
    texts = [value for value in finding.values.values() if isinstance(value, str)]
    named = [one for one in report.series if one.name == series.name and _is_named(one, texts)]
    return not named or any(one is series for one in named)


def _is_named(series: Series, texts: list[str]) -> bool:
    return any(value in text for key, value in series.qualifiers.items() if key != v.MODE for text in texts)


def _write(series: Series) -> Callable[[float], str]:
    return share if series.name in SHARES else short


def share(value: float) -> str:
    return percent(value) if value else "0 %"


def short(value: float) -> str:
    return f"{value:.3g}"


LEARNING: Final = Section(title="Learning", blocks=_blocks)
