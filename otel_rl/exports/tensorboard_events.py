"""The numbers of a run as TensorBoard's event files: a directory for each process, scalars and histograms by step."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_rl import vocabulary as v
from otel_rl.journal.read import Journal, PointView, Run
from otel_rl.journal.read import points_of as points_of_writer
from otel_rl.report.read.span_attributes import rank_of
from otel_rl.runs.spans import iteration_of, text

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import HistogramProto

MISSING: Final = "TensorBoard's files need its package, which is not installed: pip install 'otel-rl[export]'"
WHOLE: Final = (v.SCOPE_KEY, "global")
"""What goes without saying."""
Ends = Sequence[tuple[int, int]]
"""End and number of each step."""


def write_events(run: Run, directory: Path) -> None:
    """Write a directory that TensorBoard reads.

    Raises:
        ModuleNotFoundError: TensorBoard is not installed.
        OSError: a file cannot be written.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(MISSING, name=error.name) from error
    steps = _Steps(run)
    names = Counter[str]()
    for journal in run.journals:
        points = points_of_writer(journal)
        first = next(points, None)
        if first is None:
            continue
        folder = directory / _folder(first, names)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"events.out.tfevents.{first.time_ns // 1_000_000_000:010d}.otel_rl").open("wb") as file:
            writer = RecordWriter(file)
            writer.write(Event(wall_time=first.time_ns / 1e9, file_version="brain.Event:2").SerializeToString())
            summaries = _Summaries()
            for point in chain([first], points):
                event = Event(wall_time=point.time_ns / 1e9, step=steps.at(point))
                summaries.add(event, point)
                writer.write(event.SerializeToString())


class _Steps:
    """Which step a point is of: the first that ends with it or later."""

    def __init__(self, run: Run) -> None:
        by_process: defaultdict[Journal, set[tuple[int, int]]] = defaultdict(set)
        by_attempt: defaultdict[str, set[tuple[int, int]]] = defaultdict(set)
        for span in run.spans((v.ITERATION,)):
            if (step := iteration_of(span.attributes)) is not None:
                by_process[span.journal].add((span.end_ns, step))
                by_attempt[text(span.resource, v.ATTEMPT_ID)].add((span.end_ns, step))
        self._by_process = {journal: sorted(ends) for journal, ends in by_process.items()}
        self._by_attempt = {attempt: sorted(ends) for attempt, ends in by_attempt.items()}

    def at(self, point: PointView) -> int:
        """Return the step of a point: of its process, or else of its attempt; after the last step that one."""
        ends = self._by_process.get(point.journal) or self._by_attempt.get(text(point.resource, v.ATTEMPT_ID), [])
        return _step_at(ends, point.time_ns)


def _step_at(ends: Ends, time_ns: int) -> int:
    return ends[min(bisect_left(ends, (time_ns, -1)), len(ends) - 1)][1] if ends else 0


class _Summaries:
    """What the points of a process are in TensorBoard. A histogram is what came since the point before."""

    def __init__(self) -> None:
        self._before: dict[str, PointView] = {}

    def add(self, event: Any, point: PointView) -> None:
        """Add the value of a point to an event."""
        value = event.summary.value.add(tag=_tag(point))
        if point.kind == "histogram":
            self._fill(value.histo, point, self._before.get(value.tag))
            self._before[value.tag] = point
        else:
            value.simple_value = point.value

    def _fill(self, histo: HistogramProto, point: PointView, before: PointView | None) -> None:
        counts, total = point.counts, point.sum
        if before is not None and (before.start_ns, before.boundaries) == (point.start_ns, point.boundaries):
            counts = tuple(now - then for now, then in zip(counts, before.counts, strict=True))
            total -= before.sum
        if not any(counts):
            return
        first = next(index for index, count in enumerate(counts) if count)
        last = next(index for index in reversed(range(len(counts))) if counts[index])
        bounds = point.boundaries
        histo.min = max(point.min, bounds[first - 1]) if first else min(point.min, *bounds[:1])
        histo.max = min(point.max, bounds[last]) if last < len(bounds) else max(point.max, *bounds[-1:])
        histo.num, histo.sum = sum(counts), total
        for index in range(first, last + 1):
            histo.bucket.append(counts[index])
            histo.bucket_limit.append(bounds[index] if index < last else histo.max)


def _tag(point: PointView) -> str:
    """Return the name under which TensorBoard shows a series; it makes a group of what begins alike."""
    known = dict(point.attributes)
    name = point.name.removeprefix(v.USER)
    if point.name not in v.METRICS:
        name = str(known.pop(v.METRIC_NAME, name))
    labels = [f"{key}={value}" for key, value in sorted(known.items()) if (key, value) != WHOLE]
    return "/".join([name, *labels])


def _folder(point: PointView, names: Counter[str]) -> str:
    """Return the directory of a process: role and rank, and for further ones of the same a number."""
    rank = rank_of(point.resource)
    name = "sidecar" if point.journal.identity.is_sidecar else f"{rank.role}-{rank.rank}"
    name = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)
    names[name] += 1
    return name if names[name] == 1 else f"{name}.{names[name]}"

