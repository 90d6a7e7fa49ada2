"""How a run went from step to step."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_rl import vocabulary as v
from otel_rl.journal.read import Run
from otel_rl.report.data.course import (
    MEDIAN,
    RANK_NUMBERS,
    Course,
    MemoryCourse,
    RankCourse,
    Recorded,
    StepCourse,
    StepTimeline,
)
from otel_rl.report.data.ranks import Rank, StepKey
from otel_rl.report.data.report import MemoryKind, Report
from otel_rl.report.fold.folded_spans import StepRecord, sums_of
from otel_rl.report.read.average import Averaged
from otel_rl.report.read.memory_course import StepMemory
from otel_rl.report.read.rank_times import what_ranks_did
from otel_rl.report.read.step_spans import StepSpansRead, Window, lanes_of, read_steps, traces_of
from otel_rl.report.read.step_stages import apart
from otel_rl.report.rows.course_parts.rollout_gauges import rollout_gauges
from otel_rl.report.rows.course_parts.sample_rows import make_samples
from otel_rl.report.rows.course_parts.step_arrows import with_arrows
from otel_rl.report.rows.efficiency import compare_ranks
from otel_rl.tables.calls import join

if TYPE_CHECKING:
    from otel_rl.report.source import Source

MOST_STEPS: Final = 12
"""Steps whose spans are kept."""
SLOWEST: Final = 3
SIGNALS: Final = ("traces", "metrics", "logs")


def make_course(source: Source, report: Report) -> Course:
    """Read and fold how a run went; its requests and spans are read anew. Cost: 1 us a span, 20 us a step of a rank."""
    records = _of_last_loop(source.averaged, source.found.attempts)
    places = {key: place for place, key in enumerate(records)}
    steps = _steps(records, source.averaged)
    read, chosen = read_steps(source.run), chosen_steps(steps, report)
    windows = {
        key: Window(key, min(one.step.begin_ns for one in of_step), max(one.step.end_ns for one in of_step))
        for key, of_step in records.items()
    }
    return Course(
        steps=steps,
        ranks=_ranks(source, places),
        memory=_memory(source.found.growth.ranks, source.found.attempts),
        requests=read.request_courses(places),
        spans=_spans(source.run, {key: one for key, one in windows.items() if key[2] in chosen}, chosen, read),
        gauges=rollout_gauges(source.run, windows),
        samples=make_samples(source.run, windows, chosen),
        recorded=_recorded(source.run),
    )


def step_course(averaged: Averaged, attempts: Iterable[str]) -> StepCourse:
    """Return the steps of the last training loop."""
    return _steps(_of_last_loop(averaged, attempts), averaged)


def _recorded(run: Run) -> Recorded:
    records: Counter[str] = Counter()
    for journal in run.journals:
        records.update(journal.records)
    size = sum(segment.size for journal in run.journals for segment in journal.segments)
    return Recorded(records={name: records[name] for name in SIGNALS}, bytes=size, processes=len(run.journals))


def chosen_steps(course: StepCourse, report: Report) -> dict[int, str]:
    """Return the steps whose spans are kept, each with the reason: what findings name, the slowest, median and last."""
    found: dict[int, str] = {}
    for finding in (*report.findings.health, *report.findings.learn, *report.findings.time):
        for step in (finding.step, finding.since):
            if step is not None:
                found.setdefault(step, "named by a finding")
    by_time = sorted(range(len(course.steps)), key=lambda place: -course.time_s[place])
    reasons = [(place, "the slowest" if place == by_time[0] else "among the slowest") for place in by_time[:SLOWEST]]
    reasons += [(by_time[len(by_time) // 2], MEDIAN), (len(by_time) - 1, "the last")] if by_time else []
    for place, why in reasons:
        found.setdefault(course.steps[place], why)
    known = {step: why for step, why in found.items() if step in set(course.steps)}
    kept = list(known)[: MOST_STEPS - len(reasons)] + [course.steps[place] for place, _ in reasons]
    return {step: known[step] for step in sorted(set(kept))}


def _of_last_loop(averaged: Averaged, attempts: Iterable[str]) -> dict[StepKey, list[StepRecord]]:
    """Return the records of each step of the last training loop, in order; of one that was made again the newest."""
    by_key: defaultdict[StepKey, list[StepRecord]] = defaultdict(list)
    for record in averaged.finished:
        by_key[record.key].append(record)
    if not by_key:
        return {}
    order = {attempt: place for place, attempt in enumerate(attempts)}
    last = max(averaged.finished, key=lambda one: (order[one.attempt], one.step.begin_ns))
    newest: dict[int, StepKey] = {}
    for key in sorted(by_key, key=lambda key: order[key[0]]):
        if key[1] == last.step.loop:
            newest[key[2]] = key
    return {newest[step]: by_key[newest[step]] for step in sorted(newest)}


def _steps(records: Mapping[StepKey, Sequence[StepRecord]], averaged: Averaged) -> StepCourse:
    stages: defaultdict[str, list[float]] = defaultdict(lambda: [0.0] * len(records))
    steady = {record.key for record in averaged.steady}
    for place, of_step in enumerate(records.values()):
        for record in of_step:
            busy_ns = apart(record.stages.busy())
            busy_ns[v.OTHER] += record.other_ns
            for stage, ns in busy_ns.items():
                if ns:
                    stages[stage][place] += ns / len(of_step) / 1e9
    return StepCourse(
        attempts=[key[0] for key in records],
        loop=next(iter(records))[1] if records else "",
        steps=[key[2] for key in records],
        time_s=[sum(one.step.time_ns for one in of_step) / len(of_step) / 1e9 for of_step in records.values()],
        stages=dict(sorted(stages.items(), key=lambda item: -sum(item[1]))),
        is_averaged=[key in steady for key in records],
        has_other_loops=len({record.step.loop for record in averaged.finished}) > 1,
    )


def _ranks(source: Source, places: Mapping[StepKey, int]) -> RankCourse:
    records, compared = compare_ranks(join(source.found.calls), source.of_ranks)
    of_steps, waits = sums_of(records), compared.by_rank_step([record.skipped for record in records])
    did = what_ranks_did(records, of_steps, waits.ns)
    of_rank = {record.rank: (record.rank.role, record.pipeline) for record in records}
    ranks, groups = sorted(of_rank), sorted(set(of_rank.values()))
    at = {rank: place for place, rank in enumerate(ranks)}
    numbers = {name: np.full((len(ranks), len(places)), np.nan) for name in RANK_NUMBERS}
    rows = [row for row, record in enumerate(records) if record.key in places]
    kept = [records[row] for row in rows]
    where = [at[record.rank] for record in kept], [places[record.key] for record in kept]
    for name in did.keys() & numbers.keys():
        numbers[name][where] = did[name][rows] / 1e9
    work = of_steps.work
    numbers["train_tokens"][where] = np.where(work.has_trained, work.train_tokens, np.nan)[rows]
    numbers["response_tokens"][where] = np.where(work.has_responses, work.response_tokens, np.nan)[rows]
    known = {name: one for name, one in numbers.items() if not np.isnan(one).all()}
    return RankCourse(ranks=ranks, peers=[groups.index(of_rank[one]) for one in ranks], numbers=known)


def _memory(growth: Mapping[tuple[str, Rank, MemoryKind], StepMemory], attempts: Iterable[str]) -> list[MemoryCourse]:
    """Return the memory of each process at the ends of its steps; of a step that was made again the newest."""
    found: defaultdict[tuple[Rank, MemoryKind], dict[int, int]] = defaultdict(dict)
    for attempt in attempts:
        for (of, rank, kind), memory in growth.items():
            if of == attempt:
                first = [(step, size) for _, step, size, _ in sorted(memory.first, key=lambda one: one[0])]
                found[rank, kind].update([*first, *(memory.over_steps() if memory.steps else ())])
    return [
        MemoryCourse(
            role=rank.role,
            rank=rank.rank,
            kind=kind,
            steps=sorted(sizes),
            bytes=[sizes[step] for step in sorted(sizes)],
        )
        for (rank, kind), sizes in sorted(found.items())
    ]


def _spans(
    run: Run, windows: Mapping[StepKey, Window], chosen: Mapping[int, str], read: StepSpansRead
) -> list[StepTimeline]:
    traces = traces_of(read, windows)
    lanes = lanes_of(run, read, list(windows.values()))
    timelines = {
        key: StepTimeline(
            step=key[2],
            attempt=key[0],
            trace=traces[key],
            why=chosen[key[2]],
            time_ns=window.end_ns - window.begin_ns,
            lanes=lanes[key][0],
            processes=lanes[key][1],
        )
        for key, window in windows.items()
        if key in lanes and key in traces
    }
    return with_arrows(run, timelines, read.traces)
