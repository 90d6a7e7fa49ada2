"""For what a driver waits in its steps: rollouts that go on, one of them alone, or samples that are there already."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.analysis.summary import summarize
from otel_rl.journal.read import Run, SpanView
from otel_rl.report.data.roles import HeldStep, Trajectories
from otel_rl.report.fold.folded_spans import FoldedSpans, StepRecord
from otel_rl.report.read.average import Averaged
from otel_rl.report.read.single_controller.trajectories import StepRollouts, Trajectory, TrajectorySpans
from otel_rl.report.read.span_attributes import WorkSums, rank_of
from otel_rl.runs.role_words import role_in_words
from otel_rl.runs.spans import label

HELD_SHARE: Final = 0.1
"""Long trajectories hold a step from this part of it on; they take at least this multiple of the median:"""
HELD_RATIO: Final = 3.0
MOST_HELD: Final = 16
WORKING: Final = (v.SAMPLE_SERVE, v.REWARD, v.SAMPLE_TURN, v.IDLE)


def trajectories(run: Run, found: FoldedSpans, averaged: Averaged) -> Trajectories | None:
    """Sum up the trajectories of a run that are not in the steps of its ranks; None if there are none."""
    spans = found.trajectories
    longest = spans.longest
    if longest is None:
        return None
    durations = summarize(spans.durations)
    work = sum_of(spans.works.values())
    generating_s, late_s = _waited_s(found, averaged)
    return Trajectories(
        trajectories=durations.count,
        evaluated=spans.evaluated,
        prompt_tokens=work.prompt_tokens,
        response_tokens=work.response_tokens,
        median_s=durations.median,
        p95_s=durations.p95,
        longest_s=longest.duration_ns / 1e9,
        longest_sample=longest.sample,
        longest_group=longest.group,
        generating_s=generating_s,
        late_s=late_s,
        held=_held(run, spans, averaged, durations.median),
    )


def sampled_in(found: FoldedSpans, records: Iterable[StepRecord]) -> WorkSums:
    """Return what was sampled in the steps of a driver."""
    steps = found.trajectories.steps
    return sum_of(steps[record.key].work for record in records if record.key in steps)


def sum_of(works: Iterable[WorkSums]) -> WorkSums:
    total = WorkSums()
    for work in works:
        total = total.plus(work)
    return total


def _waited_s(found: FoldedSpans, averaged: Averaged) -> tuple[float | None, float | None]:
    """Return how long the driver waits in a mean step for trajectories, and how long after they have ended; or None."""
    spans = found.trajectories
    known = [(record, spans.steps[record.key]) for record in averaged.steady if record.key in spans.steps]
    if not found.led or not known or not all(spans.is_by_its_clock(record.key) for record, _ in known):
        return None, None
    late_ns = sum(rollouts.late_ns(record.waits) for record, rollouts in known)
    waited_ns = sum(end_ns - begin_ns for record, _ in known for begin_ns, end_ns in record.waits)
    steps = len(averaged.steady)
    return (waited_ns - late_ns) / steps / 1e9, late_ns / steps / 1e9


def _held(run: Run, spans: TrajectorySpans, averaged: Averaged, median_s: float) -> list[HeldStep]:
    known = [(record, spans.steps[record.key]) for record in averaged.steady if record.key in spans.steps]
    found = [one for record, rollouts in known if (one := _held_by(record, rollouts, median_s)) is not None]
    found = sorted(found, key=lambda pair: -pair[0].held_s)[:MOST_HELD]
    inside = _inside(run, {one.span_id: one.trace_id for _, one in found}) if found else {}
    return [
        replace(held, inside=where, inside_s=time_s)
        for held, one in found
        for where, time_s in [inside.get(one.span_id, ("", 0.0))]
    ]


def _held_by(record: StepRecord, rollouts: StepRollouts, median_s: float) -> tuple[HeldStep, Trajectory] | None:
    held_ns, long = rollouts.held(record.waits, HELD_RATIO * median_s * 1e9)
    if not long or held_ns < HELD_SHARE * record.step.time_ns:
        return None
    last = long[0]
    held = HeldStep(
        step=record.step.iteration,
        sample=last.sample,
        group=last.group,
        held_s=held_ns / 1e9,
        share=held_ns / record.step.time_ns,
        trajectories=len(long),
        duration_s=last.duration_ns / 1e9,
        inside="",
        inside_s=0.0,
    )
    return held, last


def _inside(run: Run, wanted: Mapping[bytes, bytes]) -> dict[bytes, tuple[str, float]]:
    """Return what took most of each of these trajectories, and for how long; another pass over the spans."""
    traces = set(wanted.values())
    children: defaultdict[bytes, list[SpanView]] = defaultdict(list)
    for span in run.spans((v.IDLE_REASON,)):
        if span.trace_id in traces:
            children[span.parent_id].append(span)
    found: dict[bytes, tuple[str, float]] = {}
    for trajectory in wanted:
        times_ns: Counter[str] = Counter()
        for span in _innermost(children, trajectory):
            rank = rank_of(span.resource)
            name = f"{label(span.name, span.attributes)} ({role_in_words(rank.role)} {rank.rank})"
            times_ns[name] += span.end_ns - span.start_ns
        if times_ns:
            name, time_ns = max(times_ns.items(), key=lambda item: item[1])
            found[trajectory] = name, time_ns / 1e9
    return found


def _innermost(children: Mapping[bytes, list[SpanView]], parent: bytes) -> Iterator[SpanView]:
    """Return the calls of servers, tools and rewards below a span, and turns that have none of them."""
    for span in children.get(parent, ()):
        if span.name in WORKING or span.name.startswith(v.EXECUTE_TOOL):
            below = list(_innermost(children, span.span_id))
            yield from below if any(one.name != v.IDLE for one in below) else (span,)
