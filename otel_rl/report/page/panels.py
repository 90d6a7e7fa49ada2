"""The panels of the page from top to bottom, and where in them the evidence of a finding is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlencode

from otel_rl.report.data.course import Course, StepCourse
from otel_rl.report.data.finding import Finding, Findings
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import Report
from otel_rl.report.findings.rule import SEVERITIES
from otel_rl.report.findings.timing import TIME
from otel_rl.report.findings.unmade import Making
from otel_rl.report.page import learning_figures, request_figures, time_figures
from otel_rl.report.page.figure import Figure, Foldouts, Heat, Mark, Panel, Timelines, shape_of
from otel_rl.report.page.recorded_amounts import recorded
from otel_rl.report.page.sample_foldouts import sample_foldouts
from otel_rl.report.section import Section, rank_name
from otel_rl.report.sections.caveats import CAVEATS, DISAGREEMENTS, FAILURES, LOST, UNSEEN_STEPS
from otel_rl.report.sections.flops_rates import FLOPS
from otel_rl.report.sections.header import DETAILS, RATES
from otel_rl.report.sections.learning_table import READS, named_series, reads_of
from otel_rl.report.sections.ledger_faults import LEDGER
from otel_rl.report.sections.memory_use import MEMORY, MEMORY_PARTS
from otel_rl.report.sections.open_now import HANGING, OPEN_STAGES, PENDING
from otel_rl.report.sections.rank_activity import RANKS, WORK
from otel_rl.report.sections.request_times import REQUESTS
from otel_rl.report.sections.role_tables import ROLES, TRAJECTORIES
from otel_rl.report.sections.stage_ranks import COLLECTIVES, OWN_TIME
from otel_rl.report.sections.stage_shares import STAGES
from otel_rl.report.sections.step_series import NUMBERS, SERIES
from otel_rl.report.sections.step_table import STEP
from otel_rl.report.sections.told_stalls import STALLS
from otel_rl.report.sections.wall_time import GOODPUT

Make = Callable[[Report, Course], list[Figure]]


@dataclass(frozen=True, slots=True)
class _Planned:
    """A panel before it has figures."""

    name: str
    label: str
    figures: Make
    sections: tuple[Section, ...] = ()
    makes_folds: Callable[[Report, Course], Foldouts | None] = lambda *_: None


PANELS: Final = (
    _Planned("trouble", "Trouble", lambda *_: [], (STALLS, HANGING, FAILURES, LEDGER, OPEN_STAGES, PENDING)),
    _Planned("learning", "Learning", lambda report, _: learning_figures.figures(report), (SERIES, NUMBERS)),
    _Planned("steps", "Steps", time_figures.step_figures, (STEP, RATES, STAGES)),
    _Planned("ranks", "Ranks", time_figures.rank_figures, (RANKS, OWN_TIME, COLLECTIVES, ROLES)),
    _Planned("rollouts", "Rollouts", request_figures.request_figures, (TRAJECTORIES, REQUESTS)),
    _Planned("samples", "Samples", lambda *_: [], makes_folds=sample_foldouts),
    _Planned("memory", "Memory", request_figures.memory_figures, (MEMORY, MEMORY_PARTS)),
    _Planned(
        "goodput", "Goodput and compute", lambda report, _: time_figures.goodput_figures(report), (GOODPUT, FLOPS, WORK)
    ),
    _Planned(
        "telemetry",
        "Telemetry",
        lambda *_: [],
        (DETAILS, UNSEEN_STEPS, DISAGREEMENTS, LOST, CAVEATS),
        makes_folds=recorded,
    ),
)
PANEL_OF: Final = {"time": ("steps",), "learn": ("learning",), "health": ("trouble", "telemetry")}
"""Where a finding leads that no figure shows: to the first of these panels that is there."""
ALL_READS: Final = READS | reads_of(TIME)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Where a finding is seen."""

    panel: str
    figure: str = ""
    step: int | None = None
    rank: Rank | None = None
    stage: str = ""

    @property
    def link(self) -> str:
        """Return the part of an address that leads there."""
        rank = {} if self.rank is None else {"rank": str(self.rank.rank), "role": self.rank.role}
        step = {} if self.step is None else {"step": str(self.step)}
        said = {"panel": self.panel, "figure": self.figure, **step, **rank, "stage": self.stage}
        return urlencode({key: value for key, value in said.items() if value})


@dataclass(frozen=True, slots=True)
class PageContent:
    """What a page shows."""

    panels: Sequence[Panel]
    evidence: Sequence[tuple[Finding, Evidence]]
    """All findings, those of TIME first."""


def make_page(report: Report, course: Course, making: Making) -> PageContent:
    """Make the panels that have something to show; a part that fails is left out and counted."""
    panels = [one for planned in PANELS if (one := _panel(planned, report, course, making)) is not None]
    found = [(one, evidence(one, report, panels)) for one in _all(report.findings)]
    return PageContent([_said(_marked(panel, found), found) for panel in panels], found)


def figures_of_steps(page: PageContent) -> list[Figure]:
    """Return the figures of a page that ``newer_figures`` makes anew."""
    return [
        one
        for panel in page.panels
        if panel.name in ("learning", "steps")
        for one in panel.figures
        if not isinstance(one.content, Timelines)
    ]


def newer_figures(shown: Sequence[Figure], report: Report, steps: StepCourse) -> tuple[list[Figure], bool]:
    """Return some curves and the stages with the numbers of a newer report, and the marks that they had.

    Also return whether one has another shape now, so that only a new page can show it; that one is left out.
    """
    known = {one.name: one for one in shown}
    newer = [*learning_figures.figures(report), *time_figures.step_figures(report, Course(steps=steps))]
    kept = [one for one in newer if one.name in known and shape_of(one) == shape_of(known[one.name])]
    return [replace(one, marks=known[one.name].marks) for one in kept], len(kept) < len(newer)


def _said(panel: Panel, found: Sequence[tuple[Finding, Evidence]]) -> Panel:
    """Give a panel the sentence of the worst finding that is seen in it as its title."""
    seen = sorted(
        (one for one, where in found if where.panel == panel.name), key=lambda one: SEVERITIES.index(one.severity)
    )
    return replace(panel, title=seen[0].sentence) if seen else panel


def _panel(planned: _Planned, report: Report, course: Course, making: Making) -> Panel | None:
    figures = making.make("section", planned.label, list[Figure](), planned.figures, report, course)
    shown = [one for one in planned.sections if making.make("section", one.title or one.name, [], one.blocks, report)]
    folds = making.make("section", planned.label, None, planned.makes_folds, report, course)
    if not figures and not shown and folds is None:
        return None
    title = planned.label if folds is None else folds.title
    return Panel(name=planned.name, label=planned.label, title=title, figures=figures, sections=shown, folds=folds)


def _all(findings: Findings) -> Iterator[Finding]:
    yield from findings.time
    yield from findings.learn
    yield from findings.health


def evidence(finding: Finding, report: Report, panels: Sequence[Panel]) -> Evidence:
    """Find the panel and the figure that show what a rule reads, and the step, the rank and the stage that it names."""
    named = () if finding.kind == "time" else dict.fromkeys(one.name for one in named_series(report, finding))
    reads = (*named, *ALL_READS.get(finding.rule, ()))
    rank, stage = finding.rank, finding.stage or ""
    step = finding.since if finding.step is None else finding.step
    names = {one.name for one in panels}
    if finding.kind == "time" and rank is not None:
        rows = {one.name: one.content.rows for of in panels for one in of.figures if isinstance(one.content, Heat)}
        figure = next((name for name, known in rows.items() if rank_name(report, rank) in known), "")
        if figure:
            return Evidence("ranks", figure, step, rank, stage)
    for read in reads:
        for panel in panels:
            for one in panel.figures:
                if read in one.reads:
                    return Evidence(panel.name, one.name, step, rank, stage)
    usual = PANEL_OF[finding.kind]
    if finding.kind == "health" and finding.severity == "note" and finding.since is not None:
        usual = ("memory", *usual)
    return Evidence(next((one for one in usual if one in names), ""), "", step, rank, stage)


def _marked(panel: Panel, found: Sequence[tuple[Finding, Evidence]]) -> Panel:
    """Mark the steps that findings name in the figures that show them."""
    figures = []
    for figure in panel.figures:
        marks = [
            Mark(step=where.step, text=finding.sentence, severity=finding.severity)
            for finding, where in found
            if where.figure == figure.name and where.step is not None
        ]
        figures.append(replace(figure, marks=marks))
    return replace(panel, figures=figures)
