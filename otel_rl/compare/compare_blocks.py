"""A comparison as the blocks that the report's renderers lay out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from otel_rl.compare.conditions import has_scatter
from otel_rl.compare.data import ComparedNumber, ComparedRun, Comparison, Group
from otel_rl.compare.show_numbers import word, write, write_change, write_difference, write_limits
from otel_rl.report.section import Block, Column, Line, Paragraph, Severity, Table, Title, foremost
from otel_rl.runs.format import brief, count, listed, plural, seconds

TITLES: Final[dict[Group, str]] = {
    "step": "step", "stage": "stage", "rank": "mean of the ranks", "throughput": "throughput of a rank",
    "request": "rollout request", "memory": "highest memory of a process", "learning": "learning",
    "trouble": "trouble",
}  # fmt: skip
STATES: Final = {"alive": "goes on"}
NOTHING: Final = "Nothing became slower, larger, less stable or worse by more than noise."
MOST_NAMES: Final = 6
MOST_ROWS: Final = 100
"""Numbers of a table."""
SEVERITY: Final[dict[str, Severity]] = {"worse": "alarm", "better": "good"}


def blocks_of(comparison: Comparison) -> list[Block]:
    """Return what is shown of a comparison, the weightiest first."""
    return [
        Title(f"{comparison.a.run} against {comparison.b.run}", _state(comparison)),
        *_runs(comparison),
        *_changes(comparison),
        *(Line(one, "warning") for one in comparison.notes),
        *_conditions(comparison),
        *_findings(comparison),
        *_tables(comparison),
        *_left_out(comparison),
    ]


def changed(comparison: Comparison, verdict: str) -> list[ComparedNumber]:
    return [one for one in comparison.numbers if one.verdict == verdict]


def _state(comparison: Comparison) -> Line:
    if found := changed(comparison, "worse"):
        return Line(f"{plural(len(found), 'number')} worse", "alarm")
    if not comparison.has_common_numbers:
        return Line("nothing to compare", "warning")
    return Line("nothing worse", "good") if is_telling(comparison) else Line("too few steps to tell", "warning")


def is_telling(comparison: Comparison) -> bool:
    """Return whether a number over the steps could be told from noise."""
    return any(one.low is not None for one in comparison.numbers)


def _runs(comparison: Comparison) -> Iterator[Block]:
    for label, run in (("A", comparison.a), ("B", comparison.b)):
        yield Paragraph(label, [Line(run_in_words(run))])
    steps = comparison.steps
    if steps.paired:
        yield Line(f"Compared over {plural(steps.a, 'step')} that both have, {steps.first} to {steps.last}.", "note")
    elif steps.a and steps.b:
        yield Line(f"Few steps in common: {count(steps.a)} of A are compared with {count(steps.b)} of B.", "note")


def run_in_words(run: ComparedRun) -> str:
    step = f", median {seconds(run.step_s)}" if run.step_s is not None else ""
    parts = [
        run.run, f"{run.system} {run.system_version}".strip(), run.algorithm, run.model, plural(run.ranks, "rank"),
        f"{plural(run.steps, 'step')}{step}", STATES.get(run.state, run.state),
    ]  # fmt: skip
    return " · ".join(filter(None, parts))


def _changes(comparison: Comparison) -> Iterator[Block]:
    by_word: defaultdict[str, list[ComparedNumber]] = defaultdict(list)
    for one in (*changed(comparison, "worse"), *changed(comparison, "better")):
        by_word[word(one)].append(one)
    if not changed(comparison, "worse") and is_telling(comparison):
        yield Line(NOTHING, "good")
    for name, found in by_word.items():
        found.sort(key=lambda one: -abs(one.relative if one.relative is not None else 1.0))
        severity = SEVERITY[found[0].verdict]
        lines = [Line(f"{one.name}: {write_difference(one)}.", severity) for one in found]
        yield Line(f"{name.capitalize()}: {listed([one.name for one in found], MOST_NAMES)}.", severity)
        for line in lines[:MOST_NAMES]:
            yield Paragraph("", [line])


def _conditions(comparison: Comparison) -> Iterator[Block]:
    for one in comparison.conditions:
        said, severity = {
            True: ("fails", "alarm"), False: ("passes", "good"), None: ("cannot be judged", "warning"),
        }[one.holds]  # fmt: skip
        yield Line(f"{one.text}: {said}: {one.reason}.", severity)  # type: ignore[arg-type]


def _findings(comparison: Comparison) -> Iterator[Block]:
    if comparison.findings:
        yield Line("Findings of B by rules that find nothing in A:", "heading")
        yield from (Line(one.sentence, "warning") for one in comparison.findings)


def _tables(comparison: Comparison) -> Iterator[Block]:
    of_group: defaultdict[Group, list[ComparedNumber]] = defaultdict(list)
    for one in comparison.numbers:
        of_group[one.group].append(one)
    for group, numbers in of_group.items():
        if group == "trouble" and not any(one.a or one.b for one in numbers):
            continue
        yield table_of(TITLES[group], numbers)
    if is_telling(comparison):
        judged = sum(bool(one.worse) and has_scatter(one) for one in comparison.numbers)
        chance = brief(comparison.chance * judged)
        yield Line(f"Limits hold for all numbers together but for a chance of {chance}; --json has all.", "note")


def table_of(title: str, numbers: list[ComparedNumber]) -> Table:
    """Return the table of some numbers; of many those that changed, then those that may be better or worse."""
    shown = foremost(numbers, lambda one: (not word(one), not one.worse, -abs(one.relative or 0.0)), MOST_ROWS)
    table = Table([
        Column(title, "key"), Column("A", "fact"), Column("B", "fact"), Column("change", "fact"),
        Column("limits"), Column("", "fact"),
    ])  # fmt: skip
    for one in shown:
        cells = [write(one, one.a), write(one, one.b), write_change(one, one.difference), write_limits(one)]
        table.add(one.name, *cells, word(one), severity=SEVERITY.get(one.verdict, ""))
    if len(shown) < len(numbers):
        table.legend.append(("", f"{count(len(numbers) - len(shown))} more are in --json"))
    return table


def _left_out(comparison: Comparison) -> Iterator[Block]:
    for one in comparison.not_compared:
        yield Line(f"Not compared, {one.reason}: {listed(one.names, MOST_NAMES)}.", "note")
    for setting in comparison.settings:
        before, after = ("-" if value is None else brief(value) for value in (setting.a, setting.b))
        yield Line(f"Setting {setting.name}: {before} in A, {after} in B.", "note")
