"""Figures of rollouts and of memory, over the steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from otel_rl import vocabulary as v
from otel_rl.report.data.course import Course, GaugeCourse, RequestCourse
from otel_rl.report.data.report import Report
from otel_rl.report.page.figure import WRITE, Axis, Curves, Figure, StepCurve, Unit, course_in_words, curve
from otel_rl.report.read.request_spans import DURATION
from otel_rl.report.section import rank_name
from otel_rl.runs.format import count, percent, size

NUMBERS: Final[Mapping[str, tuple[str, str, Unit]]] = {
    DURATION: ("duration", "A request", "s"),
    v.REQUEST_TTFT: ("ttft", "The first token", "s"),
    v.REQUEST_QUEUE: ("queue", "The wait in the queue", "s"),
    v.REQUEST_PREFILL: ("prefill", "The prefill", "s"),
    v.REQUEST_TPOT: ("tpot", "A further token", "s"),
    v.INPUT_TOKENS: ("prompt-tokens", "A prompt", "token"),
    v.OUTPUT_TOKENS: ("response-tokens", "A response", "token"),
}
GAUGES: Final[Mapping[str, tuple[str, str, Unit, str]]] = {
    v.REQUEST_RATIO: (
        "outcomes",
        "Share of {} requests",
        "1",
        "Share of the requests of a rollout, by their end.",
    ),
    v.TAIL: (
        "tail",
        "Share of a rollout that its slowest {} take alone",
        "1",
        "Share of a rollout's time that they take alone.",
    ),
    v.ROLLOUT_BUBBLE: (
        "idle-slots",
        "Share of idle slots",
        "1",
        "Share of slots times time that idles at a rollout's end.",
    ),
    v.GROUPS: ("buffer", "Number of {} prompts", "", "Prompts whose samples no step has taken yet, mean of a step."),
    v.IN_FLIGHT: (
        "in-flight",
        "Number of calls in flight to {}",
        "",
        "Calls that a process waits for, mean of a step.",
    ),
    v.RUNNING: ("running", "Number of requests that {} works on", "", "Mean of a step."),
    v.WAITING: ("waiting", "Number of requests that wait in {}", "", "The most in a step."),
    v.KV_USAGE: ("kv-cache", "Use of the KV cache of {}", "1", "Share of it in use, the most in a step."),
}
"""By gauge: name, what its title is about, unit, caption."""
OUTCOMES: Final = {"clipped": "cut", "timed_out": "timed out", "error": "failed"}
MOST_LINES: Final = 8
Sizes = tuple[str, Sequence[int], Sequence[float]]
"""Name, steps and bytes of a process."""


def request_figures(report: Report, course: Course) -> list[Figure]:
    """Return the numbers of requests that are not always the same."""
    made = {one.name: one for one in course.requests}
    known = [made[name] for name in NUMBERS if name in made and max(made[name].longest) > 0]
    requests = report.requests
    return [*(_request(one, requests.spans, requests.omitted) for one in known), *_gauges(course.gauges)]


def _gauges(gauges: Sequence[GaugeCourse]) -> Iterator[Figure]:
    """Return the gauges that are not 0 all the time, the highest of each name first."""
    for name, (short, what, unit, caption) in GAUGES.items():
        known = [one for one in gauges if one.name == name and any(one.values)]
        known.sort(key=lambda one: -max(one.values))
        if known:
            more = f" {count(len(known) - MOST_LINES)} more are not drawn." if len(known) > MOST_LINES else ""
            yield Figure(
                name=f"rollout-{short}",
                title=course_in_words(what.format(_said(name, known[0].label)), known[0].values, unit),
                y=Axis(label=short.replace("-", " "), unit=unit),
                content=Curves(
                    curves=[curve(_said(name, one.label) or short, one.steps, one.values) for one in known[:MOST_LINES]]
                ),
                caption=f"{caption}{more}",
                reads=(name,),
            )


def _said(name: str, label: str) -> str:
    """Write what a gauge is told apart by; the slowest requests are a share, replicas have numbers."""
    if name == v.IN_FLIGHT and label.isdigit():
        return f"replica {label}"
    return percent(float(label)) if name == v.TAIL and label.replace(".", "").isdigit() else OUTCOMES.get(label, label)


def _request(course: RequestCourse, spans: int, omitted: int) -> Figure:
    name, what, unit = NUMBERS[course.name]
    write = WRITE[unit]
    place = max(range(len(course.steps)), key=lambda one: course.longest[one])
    middle = sorted(course.median)[len(course.median) // 2]
    tokens = " tokens" if unit == "token" else ""
    verb = "has" if tokens else "takes"
    kept = f" Of {count(spans + omitted)} requests {count(spans)} are spans, the slowest among them." if omitted else ""
    return Figure(
        name=f"request-{name}",
        title=f"{what} {verb} {write(middle)}{tokens}, at most {write(course.longest[place])} in step "
        f"{course.steps[place]}",
        y=Axis(label=name.replace("-", " "), unit=unit),
        content=Curves(
            curves=[
                curve("median", course.steps, course.median),
                curve("p99", course.steps, course.p99, is_faint=True),
                curve("longest", course.steps, course.longest, is_faint=True),
            ]
        ),
        caption=f"Over the requests of each step, without evaluations.{kept}",
        reads=(course.name, v.SAMPLE, v.SAMPLE_GENERATE) if course.name == DURATION else (course.name,),
    )


def memory_figures(report: Report, course: Course) -> list[Figure]:
    """Return the memory of each kind at the ends of steps, and the activation peak of each step."""
    kinds: defaultdict[str, list[Sizes]] = defaultdict(list)
    for one in course.memory:
        if one.steps:
            kinds[one.kind].append((rank_name(report, one), one.steps, one.bytes))
    found = [_memory(kind, rows, "At the end of each step.", "process.memory.usage") for kind, rows in kinds.items()]
    peaks = [
        (rank_name(report, one.rank), one.steps, one.values)
        for one in course.gauges
        if one.name == v.ACTIVATION and one.rank is not None
    ]
    caption = "The most that the forward and backward of a micro-batch need, in each step."
    return [*found, *([_memory("activation peak", peaks, caption, v.ACTIVATION)] if peaks else [])]


def _memory(kind: str, rows: Sequence[Sizes], caption: str, read: str) -> Figure:
    name, _, most = max(rows, key=lambda row: row[2][-1] - row[2][0])
    by = most[-1] - most[0]
    highest = max(max(sizes) for _, _, sizes in rows)
    many = f" {count(len(rows))} processes: lowest, median, highest."
    few = len(rows) <= MOST_LINES
    grows = f"; {name} grows by {size(by)}" if by > 0 else ""
    return Figure(
        name=f"memory-{kind.replace(' ', '-')}",
        title=f"{kind.capitalize()} is at most {size(highest)}{grows}",
        y=Axis(label=kind, unit="By"),
        content=Curves(curves=[curve(*row) for row in rows] if few else _envelope(rows)),
        caption=caption + ("" if few else many),
        reads=(read,),
    )


def _envelope(rows: Sequence[Sizes]) -> list[StepCurve]:
    steps = sorted({step for _, of, _ in rows for step in of})
    at = {step: place for place, step in enumerate(steps)}
    values = np.full((len(rows), len(steps)), np.nan)
    for row, (_, of, sizes) in enumerate(rows):
        values[row, [at[step] for step in of]] = sizes
    shares = {"lowest": 0.0, "median": 0.5, "highest": 1.0}
    found = {label: np.nanquantile(values, share, axis=0).tolist() for label, share in shares.items()}
    return [curve(label, steps, numbers) for label, numbers in found.items()]
