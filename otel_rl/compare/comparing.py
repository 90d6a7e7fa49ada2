"""Compares two runs number by number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from otel_rl.compare.bootstrap import FEWEST, Difference, difference, weighted
from otel_rl.compare.busy import TIMES, busy_run
from otel_rl.compare.data import (
    FORMAT,
    ComparedNumber,
    ComparedRun,
    ComparedSteps,
    Comparison,
    Group,
    NotCompared,
    OtherSetting,
    Verdict,
)
from otel_rl.compare.numbers import RunNumber, numbers_of
from otel_rl.report.data.course import Course, StepCourse
from otel_rl.report.data.finding import Finding
from otel_rl.report.data.report import Report
from otel_rl.runs.format import listed, percent, plural

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHANCE: Final = 0.01
"""How likely any number of two runs of the same code is called worse or better."""
SINGLE: Final[tuple[Group, ...]] = ("memory", "trouble")
"""Numbers of a whole run, which have no scatter over the steps."""
Barred = tuple[tuple[Group, ...], str]
"""Groups of numbers that are not compared, and why."""
Common: TypeAlias = "tuple[NDArray[np.int64], NDArray[np.int64]]"
"""Where both runs have the steps that they have in common."""


@dataclass(frozen=True, slots=True)
class RunRows:
    """A run as its report has it."""

    report: Report
    course: Course


def compare_runs(a: RunRows, b: RunRows) -> Comparison:
    """Return how the second run differs from the first one."""
    first, second = numbers_of(a.report, a.course), numbers_of(b.report, b.course)
    barred = list(_barred(a.report, b.report))
    common = {name: _common(first[name], second[name]) for name in first if name in second}
    names = [name for name in common if not _is_barred(first[name], common[name], barred)]
    judged = sum(bool(first[name].worse) and first[name].group not in SINGLE for name in names)
    chance = CHANCE / max(1, judged)
    compared_a, compared_b = _run(a.report), _run(b.report)
    with np.errstate(all="ignore"):  # of numbers near the largest
        numbers = [_number(first[name], second[name], common[name], chance) for name in names]
    busy = busy_run(compared_a, compared_b, numbers)
    if busy:
        numbers = [replace(one, verdict="unknown") if one.group in TIMES else one for one in numbers]
    return Comparison(
        format=FORMAT,
        a=compared_a,
        b=compared_b,
        notes=[*_busy_notes(busy, compared_a, compared_b), *_notes(a.report, b.report)],
        steps=_steps(a.course.steps, b.course.steps),
        busy=busy,
        chance=chance,
        numbers=numbers,
        not_compared=[*_not_compared(first, second, common, barred)],
        settings=_settings(a.report, b.report),
        findings=_new_findings(a.report, b.report),
        conditions=[],
    )


def _run(report: Report) -> ComparedRun:
    ranks = [(one.cpu_share * one.step_s, one.step_s) for one in report.efficiency.ranks if one.cpu_share is not None]
    cpu_s, step_s = (sum(of) / len(ranks) for of in zip(*ranks, strict=True)) if ranks else (0.0, 0.0)
    return ComparedRun(
        run=report.run,
        path=report.path,
        state=report.state,
        system=report.system,
        system_version=report.system_version,
        algorithm=report.algorithm,
        model=report.model,
        ranks=len(report.ranks),
        steps=report.steps.recorded,
        step_s=report.steps.median_s if report.steps.averaged else None,
        cpu_s=cpu_s if step_s else None,
        cpu_share=cpu_s / step_s if step_s else None,
    )


def _steps(a: StepCourse, b: StepCourse) -> ComparedSteps:
    first, second = (
        {step for step, is_one in zip(one.steps, one.is_averaged, strict=True) if is_one} for one in (a, b)
    )
    common = first & second
    is_paired = len(common) >= FEWEST or (bool(common) and common in (first, second))
    return ComparedSteps(
        paired=is_paired,
        a=len(common) if is_paired else len(first),
        b=len(common) if is_paired else len(second),
        first=min(common) if is_paired else None,
        last=max(common) if is_paired else None,
    )


def _number(a: RunNumber, b: RunNumber, common: Common, chance: float) -> ComparedNumber:
    found, steps = _difference(a, b, common, chance)
    before = found.before
    relative = found.by / abs(before) if before else None
    return ComparedNumber(
        name=a.name,
        group=a.group,
        unit=a.unit,
        worse=a.worse,
        a=_finite(found.before),
        b=_finite(found.after),
        difference=_finite(found.by),
        low=None if a.group in SINGLE or found.low is None else _finite(found.low),
        high=None if a.group in SINGLE or found.high is None else _finite(found.high),
        relative=None if relative is None else _finite(relative),
        steps=steps,
        verdict=_verdict(a, found),
    )


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _common(a: RunNumber, b: RunNumber) -> Common:
    if np.array_equal(a.steps, b.steps):
        every = np.arange(len(a.steps))
        return every, every
    _, first, second = np.intersect1d(a.steps, b.steps, assume_unique=True, return_indices=True)
    return first, second


def _difference(a: RunNumber, b: RunNumber, common: Common, chance: float) -> tuple[Difference, int]:
    """Compare by the steps that both have, since numbers change as a run goes on; without enough of them by all."""
    first, second = common
    if a.group in SINGLE:
        before, after = (a.values[first], b.values[second]) if len(first) else (a.values, b.values)
        levels = float(before.max()), float(after.max())
        return Difference(*levels, levels[1] - levels[0], levels[1] - levels[0]), len(first)
    is_paired = len(first) >= FEWEST or a.group == "learning"
    one, other = (_contributions(a, first), _contributions(b, second)) if is_paired else map(_contributions, (a, b))
    return difference(one, other, chance, is_paired=is_paired), min(len(one), len(other))


def _contributions(number: RunNumber, chosen: NDArray[np.int64] | slice = slice(None)) -> NDArray[np.float64]:
    """Return what each step contributes to the level; all steps if none are chosen."""
    values = number.values[chosen]
    if not len(values):
        return values
    return number.contributions(values) if number.weights is None else weighted(values, number.weights[chosen])


def _verdict(a: RunNumber, found: Difference) -> Verdict:
    if not a.worse or found.low is None:
        return "unknown"
    low, high = np.quantile(a.values, (0.05, 0.95))
    least = max(a.least.share * abs(found.before), a.least.absolute, a.least.spread * float(high - low))
    # of troubles it counts whether there are any: runs of other lengths have other counts
    is_large = (found.before == 0) != (found.after == 0) if a.group == "trouble" else abs(found.by) >= least
    if not found.is_sure or not is_large:
        return "no_change"
    return "worse" if (found.by > 0) == (a.worse == "more") else "better"


def _barred(a: Report, b: Report) -> Iterator[Barred]:
    """Yield the groups of numbers that mean something else in the two runs, and why."""
    if a.system != b.system:
        what = f"{a.system or 'no framework'} and {b.system or 'no framework'}"
        yield ("step", "stage", "rank"), f"{what} cut their steps and stages differently"
    elif len(a.ranks) != len(b.ranks):
        yield ("rank",), f"waits depend on the number of ranks, {len(a.ranks)} and {len(b.ranks)}"


def _is_barred(a: RunNumber, common: Common, barred: Sequence[Barred]) -> bool:
    return any(a.group in groups for groups, _ in barred) or _is_apart(a, common)


def _is_apart(a: RunNumber, common: Common) -> bool:
    """Return whether a number of learning has no step in common: it changes as a run goes on."""
    return a.group == "learning" and not len(common[0])


def _not_compared(
    first: Mapping[str, RunNumber],
    second: Mapping[str, RunNumber],
    common: Mapping[str, Common],
    barred: Sequence[Barred],
) -> Iterator[NotCompared]:
    found = [(reason, [name for name in common if first[name].group in groups]) for groups, reason in barred]
    found.append(("the runs have no step in common", [name for name in common if _is_apart(first[name], common[name])]))
    found.append(("only the first run has it", [name for name in first if name not in second]))
    found.append(("only the second run has it", [name for name in second if name not in first]))
    yield from (NotCompared(names=names, reason=reason) for reason, names in found if names)


def _settings(a: Report, b: Report) -> list[OtherSetting]:
    names = sorted({*a.settings, *b.settings})
    return [
        OtherSetting(name=name, a=a.settings.get(name), b=b.settings.get(name))
        for name in names
        if a.settings.get(name) != b.settings.get(name)
    ]


def _new_findings(a: Report, b: Report) -> list[Finding]:
    before, after = ([*one.findings.time, *one.findings.learn, *one.findings.health] for one in (a, b))
    known = {one.rule for one in before if one.severity != "note"}
    return [one for one in after if one.severity != "note" and one.rule not in known]


def _notes(a: Report, b: Report) -> Iterator[str]:
    """Yield what is to be kept in mind, the weightiest first."""
    for which, one in (("first", a), ("second", b)):
        if one.state == "alive":
            yield f"The {which} run goes on: it is compared as far as it is."
        if not one.steps.averaged:
            yield f"The {which} run has no step to compare: no time, no stage and no rank is compared."
        elif one.steps.averaged < FEWEST:
            yield (
                f"The {which} run has {plural(one.steps.averaged, 'step')} after the warm-up: too few to tell a "
                f"difference from noise, which takes {FEWEST}."
            )
    for what, before, after in (
        ("framework", a.system, b.system),
        ("version of the framework", a.system_version, b.system_version),
        ("algorithm", a.algorithm, b.algorithm),
        ("model", a.model, b.model),
    ):
        if before != after:
            yield f"The {what} differs: {before or 'unknown'} and {after or 'unknown'}."
    if len(a.ranks) != len(b.ranks):
        yield (
            f"The first run has {plural(len(a.ranks), 'rank')}, the second {len(b.ranks)}: a step may be other work. "
            "Throughput is that of one rank."
        )
    if changed := _settings(a, b):
        yield f"Settings differ: {listed([one.name for one in changed])}."


def _busy_notes(busy: str, a: ComparedRun, b: ComparedRun) -> Iterator[str]:
    if busy and a.cpu_share and b.cpu_share:
        yield (
            f"The machine of {'the first' if busy == 'a' else 'the second'} run was busy otherwise: most stages take "
            f"longer than their CPU time explains. Training threads got {percent(a.cpu_share)} of a core in the first "
            f"run, {percent(b.cpu_share)} in the second. Times are not judged."
        )
