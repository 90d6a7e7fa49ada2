"""Two runs in the panels of one page: each number of both over the steps, and the differences with their limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from otel_rl.compare.compare_blocks import TITLES, blocks_of, table_of
from otel_rl.compare.comparing import RunRows
from otel_rl.compare.data import ComparedNumber, Comparison, Group, Verdict
from otel_rl.compare.numbers import RunNumber, numbers_of
from otel_rl.compare.show_numbers import word, write_change, write_difference, write_limits
from otel_rl.report.data.report import Report
from otel_rl.report.page import time_figures
from otel_rl.report.page.blocks import html_of, marked, safe
from otel_rl.report.page.document import PageParts, parts_of_figures, write_page
from otel_rl.report.page.figure import Axis, Curves, Figure, Panel, Stack, Unit, curve, per_point
from otel_rl.report.section import Section, Severity, Table
from otel_rl.runs.format import percent, plural

PANELS: Final[tuple[tuple[str, str, tuple[Group, ...]], ...]] = (
    ("learning", "Learning", ("learning",)),
    ("steps", "Steps", ("step", "stage", "throughput")),
    ("ranks", "Ranks", ("rank",)),
    ("rollouts", "Rollouts", ("request",)),
    ("memory", "Memory", ("memory",)),
)
"""Name and label as on the page of one run, and the groups of numbers in it."""
UNITS: Final[dict[str, Unit]] = {"s": "s", "By": "By", "1": "1", "token": "token"}
MOST_FIGURES: Final = 24
"""Figures of a panel; the tables have all numbers."""
MARKS: Final[dict[Verdict, Severity]] = {"worse": "alarm", "better": "good"}
LONGEST_ID: Final = 60
WIDEST: Final = 0.5
"""The largest change that fits into the picture of the limits."""
HALF: Final = 100
"""Half the width of that picture."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """Both runs: their rows and their numbers."""

    runs: tuple[RunRows, RunRows]
    numbers: tuple[dict[str, RunNumber], dict[str, RunNumber]]


def to_html(a: RunRows, b: RunRows, comparison: Comparison) -> str:
    """Write the comparison of two runs as one HTML document."""
    pair = _Pair((a, b), (numbers_of(a.report, a.course), numbers_of(b.report, b.course)))
    panels = [panel for name, label, groups in PANELS if (panel := _panel(name, label, groups, comparison, pair))]
    drawn = parts_of_figures(f"{comparison.a.run} against {comparison.b.run}", [
        figure for panel in panels for figure in panel.figures
    ])  # fmt: skip
    names = ["differences", *(one.name for one in panels)]
    links = [("differences", "Differences"), *((one.name, one.label) for one in panels)]
    body = {
        "head": _head(comparison),
        "panel-links": "<nav>" + "".join(f'<a href="#panel={name}">{label}</a>' for name, label in links) + "</nav>",
        "panel-differences": _differences(comparison),
        **{f"panel-{one.name}": _written(one, drawn, b.report) for one in panels},
    }
    nothing: dict[str, Any] = {"ranks": [], "first": None, "kept": [], "timelines": [], "colours": {}}
    return write_page(PageParts(drawn.title, body, {**drawn.data, **nothing, "panels": names}))


def _written(panel: Panel, drawn: PageParts, report: Report) -> str:
    figures = "".join(drawn.body[f"figure-{one.name}"] for one in panel.figures)
    tables = "".join(html_of(one.blocks(report)) for one in panel.sections)
    label = f'<p class="label">{safe(panel.label)}</p>' if panel.title != panel.label else ""
    return (
        f'<section id="panel-{panel.name}" class="panel">{label}<h2>{safe(panel.title)}</h2>'
        f'<div class="figures">{figures}</div><details><summary>Numbers</summary>{tables}</details></section>'
    )


def _head(comparison: Comparison) -> str:
    said = [block for block in blocks_of(comparison) if not isinstance(block, Table)]
    return (
        f'<header id="head">{html_of(said)}<form role="search"><label>Go to <input name="to" placeholder="step 17" '
        'autocomplete="off"></label><button type="button" id="whole">whole run</button></form></header>'
    )


def _panel(name: str, label: str, groups: Sequence[Group], comparison: Comparison, pair: _Pair) -> Panel | None:
    numbers = [one for one in comparison.numbers if one.group in groups]
    if not numbers:
        return None
    by_weight = sorted(numbers, key=lambda one: one.verdict not in MARKS)
    made = [
        replace(figure, name=f"{figure.name[:LONGEST_ID]}-{place}")
        for place, one in enumerate(by_weight)
        if (figure := _figure(one, pair))
    ]
    whole = _of_both(pair, name)
    left = len(made) - MOST_FIGURES
    more = f" {plural(left, 'number')} more are in the table." if left > 0 else ""
    found = [one for one in numbers if one.verdict == "worse"]
    title = f"{found[0].name} is {word(found[0])}: {write_difference(found[0])}" if found else label
    figures = [*whole, *made[:MOST_FIGURES]]
    if figures and more:
        figures[-1] = replace(figures[-1], caption=figures[-1].caption + more)
    return Panel(name=name, label=label, title=title, figures=figures, sections=[*_tables(groups, numbers)])


def _tables(groups: Sequence[Group], numbers: Sequence[ComparedNumber]) -> Iterator[Section]:
    for group in groups:
        if chosen := [one for one in numbers if one.group == group]:
            table = table_of(TITLES[group], chosen)
            yield Section(name=group, blocks=lambda _, table=table: [table])  # type: ignore[misc]


def _figure(number: ComparedNumber, pair: _Pair) -> Figure | None:
    """Return a number of both runs over the steps; None for one of whole runs."""
    both = [of[number.name] for of in pair.numbers]
    if not all(len(one.steps) for one in both):
        return None
    curves = [
        curve(label, [round(step) for step in one.steps], one.values.tolist())
        for label, one in zip("AB", both, strict=True)
    ]
    each = max(per_point([0] * len(one.steps)) for one in both)
    thin = "each step" if each == 1 else f"mean of {plural(each, 'step')}"
    return Figure(
        name="".join(one if one.isalnum() else "-" for one in number.name),
        title=f"{number.name}: {write_difference(number)}",
        y=Axis(label=number.name.rpartition(".")[2], unit=UNITS.get(number.unit, "")),
        content=Curves(curves=curves),
        caption=f"A and B, {thin}{'; the mean around it is thick' if curves[0].smooth else ''}.",
        reads=(number.name,),
    )


def _of_both(pair: _Pair, name: str) -> Iterator[Figure]:
    """Yield the figures of whole runs, one for each: the stacked stages, and how much longer each rank works."""
    for label, rows in zip("AB", pair.runs, strict=True):
        if name == "steps":
            found = time_figures.step_figures(rows.report, rows.course)
            chosen = [one for one in found if isinstance(one.content, Stack)]
        elif name == "ranks":
            chosen = time_figures.rank_figures(rows.report, rows.course)[:1]
        else:
            chosen = []
        for one in chosen:
            caption = one.caption.removesuffix(time_figures.CLICK)
            yield replace(one, name=f"{one.name}-{label}", title=f"{label}: {one.title}", caption=caption)


def _differences(comparison: Comparison) -> str:
    """Write the numbers that have limits with a picture of these: what crosses the line may be chance."""
    rows = [one for one in comparison.numbers if one.low is not None and one.a]
    wide = min(WIDEST, max((abs(edge) for one in rows for edge in _edges(one)), default=0.0)) or WIDEST
    rows.sort(key=lambda one: one.verdict not in MARKS)
    shown = "".join(_difference(one, wide) for one in rows)
    head = "".join(f'<th scope="col">{one}</th>' for one in ("", "change", "limits", f"± {percent(wide)}", ""))
    table = f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{shown}</tbody></table></div>'
    none = "<p>No number has limits: there are too few steps.</p>"
    return (
        f'<section id="panel-differences" class="panel"><h2>Differences</h2>{table if rows else none}'
        '<p class="note">B against A. Where the bar crosses the line, the difference may be chance.</p></section>'
    )


def _edges(number: ComparedNumber) -> tuple[float, float]:
    low, high, level = number.low or 0.0, number.high or 0.0, abs(number.a or 1.0)
    return low / level, high / level


def _difference(number: ComparedNumber, wide: float) -> str:
    severity = MARKS.get(number.verdict, "")
    change, limits = write_change(number, number.difference), write_limits(number)
    cells = (safe(number.name), safe(change), safe(limits), _bar(number, wide), marked(word(number), severity))
    return f'<tr class="{severity}">{"".join(f"<td>{one}</td>" for one in cells)}</tr>'


def _bar(number: ComparedNumber, wide: float) -> str:
    def at(share: float) -> float:
        return round(HALF * max(-1.0, min(1.0, share / wide)), 1)

    low, high = map(at, _edges(number))
    middle = at(number.relative or 0.0)
    return (
        f'<svg width="{2 * HALF + 8}" height="14" viewBox="{-HALF - 4} 0 {2 * HALF + 8} 14" aria-hidden="true">'
        '<line x1="0" x2="0" y1="0" y2="14" stroke="currentColor" stroke-opacity=".4"/>'
        f'<line x1="{low}" x2="{high}" y1="7" y2="7" stroke="currentColor" stroke-width="2"/>'
        f'<circle cx="{middle}" cy="7" r="3" fill="currentColor"/></svg>'
    )
