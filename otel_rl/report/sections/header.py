"""The head of the report: which run it is, how it ended, how fast it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from otel_rl import vocabulary as v
from otel_rl.journal.read import Run
from otel_rl.report.data.report import Rate, Report, TrainingRow
from otel_rl.report.read.single_controller.guest_steps import DRIVER
from otel_rl.report.section import Block, Line, Section, Title
from otel_rl.report.sections.role_tables import processes
from otel_rl.runs.format import clock, count, listed, number, percent, plural, seconds
from otel_rl.runs.spans import text

if TYPE_CHECKING:
    from otel_rl.report.reading import Points

STATES: Final = {
    "alive": Line("running", "good"),
    "finished": Line("finished", "good"),
    "failed": Line("failed", "warning"),
    "killed": Line("killed", "warning"),
    "interrupted": Line("interrupted", "warning"),
    "unwritten": Line("ended before all was written", "warning"),
    "moved": Line("moved while it went on", "warning"),
    "unknown": Line("ended, no tear-down recorded", "warning"),
}
SETTINGS: Final[dict[str, Callable[[float], str]]] = {
    "learning_rate": lambda value: f"lr {number(value)}",
    "samples_per_rank": lambda value: f"{count(value)} answers a rank",
    "group_size": lambda value: f"groups of {count(value)}",
    "response_limit": lambda value: f"limit {plural(round(value), 'token')}",
    "updates_per_rollout": lambda value: f"{number(value)} update{'' if value == 1 else 's'} a rollout",
    "temperature": lambda value: f"temperature {number(value)}",
    "kl_coefficient": lambda value: f"KL coefficient {number(value)}",
}
"""How settings of the training are written."""


def _blocks(report: Report) -> list[Block]:
    read, all_ranks = len(report.ranks), len(report.ranks) + report.missing_ranks
    ranks = f"{f'{read} of ' if read < all_ranks else ''}{plural(all_ranks, 'rank')}" if read else ""
    trained: Sequence[TrainingRow | Report] = report.trainings or [report]
    names = ([one.algorithm for one in trained], [one.model for one in trained])
    facts = [
        f"{report.system} {report.system_version}".strip(),
        *(listed(list(dict.fromkeys(filter(None, of)))) for of in names),
        processes(report) or ranks,
        _steps(report),
    ]
    trainings = [
        f"{' of '.join(filter(None, (one.algorithm, one.model))) or 'unknown'} for {plural(one.steps, 'step')}"
        for one in report.trainings
    ]
    attempts = [f"{STATES[attempt.state].text} after {plural(attempt.steps, 'step')}" for attempt in report.attempts]
    lines = [_joined(facts), _said_settings(report), _sequence("trainings", trainings), _sequence("attempts", attempts)]
    return [Title(report.run, _state(report)), *(Line(line) for line in lines if line)]


def _joined(facts: Iterable[str]) -> str:
    return " · ".join(filter(None, facts))


def _state(report: Report) -> Line:
    if not report.attempts:
        return Line("nothing recorded" if report.is_empty else "no spans recorded", "warning")
    is_missed = report.state == "unknown" and report.steps.recorded > 0  # who makes no step has nothing to tear down
    state = STATES[report.state] if report.state != "unknown" or is_missed else Line("ended", "note")
    setup = report.attempts[-1].setup_s
    least = "at least " if report.state in {"killed", "unwritten"} else ""
    times = f"{least}{seconds(report.duration_s)}{'' if setup is None else f' (set-up {seconds(setup)})'}"
    return Line(f"{state.text}, {times}" if report.begin_ns else state.text, state.severity)


def _steps(report: Report) -> str:
    steps = report.steps
    if not steps.recorded:
        return f"{plural(report.unseen_steps, 'step')} without spans" if report.unseen_steps else "no finished step"
    is_plain = steps.first in (0, 1) and steps.last == steps.first + steps.recorded - 1 and steps.loops < 2
    span = "" if is_plain else f" ({'-'.join(map(str, dict.fromkeys((steps.first, steps.last))))})"
    loops = f" in {plural(steps.loops, 'loop')}" if steps.loops > 1 else ""
    times = f", median {seconds(steps.median_s)}" if steps.averaged else ""
    planned = report.settings.get("steps", 0)
    of = f"{count(steps.recorded)} of " if steps.recorded < planned else ""
    return of + plural(round(max(steps.recorded, planned)), "step") + span + loops + times


def _said_settings(report: Report) -> str:
    return ", ".join(write(report.settings[name]) for name, write in SETTINGS.items() if name in report.settings)


def _rate_blocks(report: Report) -> list[Block]:
    rates = [_rate(rate) for rate in report.rates if rate.wall == "step"]
    padding = report.efficiency.goodput[-1].padding_share if report.efficiency.goodput else None
    rates += [f"padding {percent(padding)}"] if padding is not None else []
    return [Line(_joined(rates))] if rates else []


def _detail_blocks(report: Report) -> list[Block]:
    steps = report.steps
    began = f"started {clock(report.begin_ns)}, ended {clock(report.end_ns)}" if report.begin_ns else ""
    averaged = f"{plural(steps.averaged, 'step')} averaged, {count(steps.warmup)} after set-up left out"
    rates = [_rate(rate) for rate in report.rates if rate.wall == "stage"]
    lines = [began, averaged if steps.averaged else "", *(f"while generating: {rate}" for rate in rates)]
    return [Line(line) for line in lines if line]


def _rate(rate: Rate) -> str:
    value = count(rate.per_second) if rate.per_second >= 99.5 else f"{rate.per_second:.3g}"
    unit = "trained tokens" if rate.work == "train" else rate.unit
    return f"{value} {unit.replace('tokens', 'tok')}/s"


def _sequence(noun: str, parts: Sequence[str]) -> str:
    return f"{len(parts)} {noun}: {', then '.join(parts)}" if len(parts) > 1 else ""


def early_head(run: Run, points: Points) -> list[Block]:
    """Return what is known of a run before its spans are read, for a report that would take too long."""
    resource = points.resource
    ranks = [rank for rank in points.stepped if rank.role != DRIVER] or points.stepped
    made = [plural(len(ranks), "rank"), plural(max(points.stepped.values()), "step")] if points.stepped else []
    system = f"{text(resource, v.SYSTEM)} {text(resource, v.SYSTEM_VERSION)}".strip()
    facts = [system, text(resource, v.ALGORITHM), text(resource, v.MODEL_NAME), *made]
    times = [f"started {clock(points.begin_ns)}"] if points.begin_ns else []
    if points.begin_ns and points.end_ns > points.begin_ns:
        times.append(f"lasted {seconds((points.end_ns - points.begin_ns) / 1e9)}")
    name = Line(f"otel_rl  {text(resource, v.RUN_ID) or run.path.name}", "heading")
    return [name, *(Line(line) for line in (_joined(facts), _joined(times)) if line)]


HEADER: Final = Section(name="run", blocks=_blocks)
RATES: Final = Section(name="rates", blocks=_rate_blocks)
DETAILS: Final = Section(title="Run", blocks=_detail_blocks)
