"""The numbers of a run as TensorBoard's event files: a directory for each process, scalars and histograms by step."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_rl import vocabulary as v
from otel_rl.journal.read import Journal, PointView, Run
from otel_rl.journal.read import points_of as points_of_writer
from otel_rl.query.columns_as_arrays import text_of
from otel_rl.report.read.span_attributes import rank_of
from otel_rl.runs.spans import iteration_of, text
from otel_rl.runs.whole_file import replacing

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import HistogramProto

MISSING: Final = "TensorBoard's files need its package, which is not installed: pip install 'otel-rl[export]'"
EVENTS: Final = "tfevents"
"""TensorBoard reads each file that has this in its name."""
SUFFIX: Final = ".otel_rl"
UNFINISHED: Final = "otel_rl.part"
Ends = Sequence[tuple[int, int]]
"""End and number of each step."""


class OtherEvents(ValueError):
    """A directory has events of another run; the message says what to do."""


def write_events(run: Run, directory: Path) -> None:
    """Write a directory that TensorBoard reads; what was written of this run before is replaced.

    Raises:
        ModuleNotFoundError: TensorBoard is not installed.
        OtherEvents: it would show two runs as one.
        OSError: a file cannot be written.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(MISSING, name=error.name) from error
    files = _files(run, directory)
    before = _events_before(run, directory, {file.parent for file in files.values()})
    steps = _Steps(run)
    with ExitStack() as all_at_once:
        for journal, path in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            part = all_at_once.enter_context(replacing(path, path.parent / UNFINISHED))
            with part.open("wb") as file:
                writer, summaries, is_first = RecordWriter(file), _Summaries(), True
                for point in points_of_writer(journal):
                    if is_first:
                        head = Event(wall_time=point.time_ns / 1e9, file_version="brain.Event:2")
                        writer.write(head.SerializeToString())
                        is_first = False
                    event = Event(wall_time=point.time_ns / 1e9, step=steps.at(point))
                    if summaries.add(event, point):
                        writer.write(event.SerializeToString())
    for old in before - set(files.values()):
        old.unlink()


def _files(run: Run, directory: Path) -> dict[Journal, Path]:
    """Return the file of each process that has points. Its name is that of no other process."""
    names = Counter[str]()
    found = {}
    for journal in run.journals:
        first = next(points_of_writer(journal), None)
        if first is not None:
            seconds = first.time_ns // 1_000_000_000
            name = f"events.out.{EVENTS}.{seconds:010d}.{journal.identity.writer}{SUFFIX}"
            found[journal] = directory / _folder(first, names) / name
    return found


def _events_before(run: Run, directory: Path, folders: set[Path]) -> set[Path]:
    """Return the files of this run that an export wrote before.

    Raises:
        OtherEvents: there are files of another one: TensorBoard would show their curves as one.
    """
    ours = tuple(f".{journal.identity.writer}{SUFFIX}" for journal in run.journals)
    found = {file for folder in folders for file in folder.glob(f"*{EVENTS}*")}
    for other in sorted(file for file in found if not file.name.endswith(ours)):
        raise OtherEvents(
            f"{other.parent} has events that are not of this run, and TensorBoard would show both as one. Name a "
            f"directory for each run, such as --output {directory / run.path.name}, and their parent in --logdir"
        )
    return found


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
        self._scopes: dict[str, str] = {}

    def add(self, event: Any, point: PointView) -> bool:
        """Add the value of a point to an event; return whether it has one: not a histogram that stayed the same."""
        tag, scope = _tag(point), text(point.attributes, v.SCOPE_KEY)
        if self._scopes.setdefault(tag, scope) != scope:  # a rank's own beside that of all ranks
            tag = f"{tag}/{v.SCOPE_KEY}={scope}"
        value = event.summary.value.add(tag=tag)
        if point.kind == "histogram":
            _fill(value.histo, point, self._before.get(tag))
            self._before[tag] = point
            return bool(value.histo.num)
        value.simple_value = point.value
        return True


def _fill(histo: HistogramProto, point: PointView, before: PointView | None) -> None:
    """Set what a histogram has counted since the point before; its buckets are those between the extremes."""
    bounds, counts, total = point.boundaries, list(point.counts), point.sum
    if before is not None and before.start_ns == point.start_ns:
        total -= before.sum
        for index, count in enumerate(before.counts):  # exponential ones join buckets while they grow
            upper = before.boundaries[index] if index < len(before.boundaries) else math.inf
            counts[bisect_left(bounds, upper)] -= count
    used = [index for index, count in enumerate(counts) if count > 0]
    if not used:
        return
    first, last = used[0], used[-1]
    histo.min = max(point.min, bounds[first - 1]) if first else min(point.min, *bounds[:1])
    histo.max = min(point.max, bounds[last]) if last < len(bounds) else max(point.max, *bounds[-1:])
    histo.num, histo.sum = sum(counts), total
    histo.bucket.extend(counts[first : last + 1])
    histo.bucket_limit.extend([*bounds[first:last], histo.max])


def _tag(point: PointView) -> str:
    """Return the name of a series in TensorBoard, which makes a group of what has the same text before a slash."""
    name, labels = point.name, {key: value for key, value in point.attributes.items() if key != v.SCOPE_KEY}
    if name not in v.METRICS:
        labels.pop(v.METRIC_NAME, None)
    group, _, _ = name.rpartition(".")
    groups = [".".join(group.split(".")[:2])] if group and "/" not in name else []
    return "/".join([*groups, name, *(f"{key}={text_of(value)}" for key, value in sorted(labels.items()))])


def _folder(point: PointView, names: Counter[str]) -> str:
    """Return the directory of a process: role and rank, and for further ones of the same a number."""
    rank = rank_of(point.resource)
    name = "sidecar" if point.journal.identity.is_sidecar else f"{rank.role}-{rank.rank}"
    name = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)
    names[name] += 1
    return name if names[name] == 1 else f"{name}.{names[name]}"
