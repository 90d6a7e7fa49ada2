"""The learning curves of the screen: reward first, and a mark at what a finding names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from otel_rl import vocabulary as v
from otel_rl.report.data.finding import Finding
from otel_rl.report.data.report import Report, Series
from otel_rl.report.findings.health import HEALTH
from otel_rl.report.findings.learning import LEARN
from otel_rl.report.findings.rule import Rule
from otel_rl.report.rows.rule_file import beyond
from otel_rl.report.rows.series import of_last_loop
from otel_rl.report.section import Block, Section, Severity, Table, foremost, more, notes
from otel_rl.report.sections.step_series import TITLES, add_series, is_shown, series_table, title_of
from otel_rl.runs.format import brief, percent, plural

ORDER: Final = (
    v.REWARD_SCORE, v.FUNCTION_SCORE, v.EVAL_REWARD, v.REWARD_ZERO_STD, v.KL_REFERENCE, v.ENTROPY, v.GRAD_NORM,
    v.RESPONSE_LENGTH, v.RESPONSE_CLIPPED, v.SAMPLE_LAG, v.LOGPROB_DIFFERENCE, v.LOSS, v.KL_POLICY,
    v.CLIP_FRACTION, v.LEARNING_RATE,
)  # fmt: skip
"""Order of the rows."""
ONLY_MARKED: Final = (v.LOGPROB_DIFFERENCE, v.KL_POLICY, v.CLIP_FRACTION, v.LEARNING_RATE)
SHARES: Final = (v.REWARD_ZERO_STD, v.RESPONSE_CLIPPED, v.CLIP_FRACTION)
MOST_ROWS: Final = 10
MOST_OWN: Final = 4
LAST_LOOP: Final = "Of the last training loop, as LEARN; --all has all loops."


def reads_of(rules: Iterable[Rule[Any]]) -> dict[str, tuple[str, ...]]:
    """Return the names of what each rule reads, by its name."""
    return {rule.name: rule.reads for rule in rules}


READS: Final = reads_of([*LEARN, *HEALTH])


def _blocks(report: Report) -> list[Block]:
    marks = _marks(report)
    rows = sorted(_rows(report, marks), key=lambda one: (ORDER.index(one.name), len(one.qualifiers)))
    most = MOST_ROWS if len(rows) <= MOST_ROWS else MOST_ROWS - 1
    shown = foremost(rows, lambda one: (id(one) not in marks and not one.nonfinite, one.name == v.FUNCTION_SCORE), most)
    own = report.numbers if len(report.numbers) <= min(MOST_OWN, most - len(shown)) else []
    table = series_table("learning", "first", "last", "min", "max")
    for one in shown:
        last = of_last_loop(one)
        unusual = beyond(report.rules.kl, last.last) if one.name == v.KL_REFERENCE else ""
        _add(table, title_of(one), last, _write(one), marks.get(id(one)), unusual)
    for one in own:
        _add(table, one.name, of_last_loop(one), brief)
    left = len(rows) - len(shown) + len(report.numbers) - len(own)
    if not shown and not own:
        return notes(f"{plural(left, 'number')} of your own over the steps: --all" if left else "")
    is_cut = any(of_last_loop(one) is not one for one in (*shown, *own))
    return [table, *more(left, ": --all"), *notes(LAST_LOOP if is_cut else "")]


def _add(
    table: Table,
    name: str,
    one: Series,
    write: Callable[[float], str],
    mark: Severity | None = None,
    unusual: str = "",
) -> None:
    add_series(table, name, (one.first, one.last, one.low, one.high), one, write, mark, unusual)


def _rows(report: Report, marks: Mapping[int, Severity]) -> Iterator[Series]:
    has_reward = any(one.name in (v.REWARD_SCORE, v.FUNCTION_SCORE) for one in report.series)
    for one in report.series:
        is_left_out = one.name in ONLY_MARKED or (has_reward and one.name == v.LOSS)
        is_bad = id(one) in marks or one.nonfinite > 0
        if one.name in ORDER and is_shown(one) and (is_bad or not is_left_out):
            yield one


def _marks(report: Report) -> dict[int, Severity]:
    """Return the severity of the worst finding that names a series, by the id of the series."""
    found = [one for one in (*report.findings.learn, *report.findings.health) if one.severity != "note"]
    marks: dict[int, Severity] = {}
    for finding in sorted(found, key=lambda one: one.severity):  # alarms first
        for series in named_series(report, finding):
            marks.setdefault(id(series), "alarm" if finding.severity == "alarm" else "warning")
    return marks


def named_series(report: Report, finding: Finding) -> list[Series]:
    """Return the series that a sentence names, or else all that its rule reads, the reward if it reads that first."""
    reads = READS.get(finding.rule, ())
    rows = [one for one in report.series if one.name in reads and is_shown(one)]
    rows = [one for one in rows if one.name != v.REWARD_SCORE or one.name == reads[0]]
    return [one for one in rows if _is_named(one, finding.sentence)] or rows


def _is_named(series: Series, sentence: str) -> bool:
    """Return whether a sentence has the name of a function, or the first word of another row."""
    functions = [value for key, value in series.qualifiers.items() if key != v.MODE]
    names = functions or [TITLES[series.name].split()[0]]
    return any(re.search(rf"\b{re.escape(name)}s?\b", sentence, re.IGNORECASE) for name in names)


def _write(series: Series) -> Callable[[float], str]:
    return percent if series.name in SHARES else brief


LEARNING: Final = Section(title="Learning", blocks=_blocks)
