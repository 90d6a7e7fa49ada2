"""What a report reads of a run, once: its spans, points and log records; later only what came since."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from otel_rl import vocabulary as v
from otel_rl.journal.bookmark import Bookmark
from otel_rl.journal.files import Journal
from otel_rl.journal.read import (
    LogView,
    OpenRecords,
    OpenView,
    PointView,
    Run,
    logs_of,
    note_ended,
    note_open,
    open_stages,
    points_of,
    span_columns,
)
from otel_rl.records import Attributes
from otel_rl.report.data.ranks import Rank
from otel_rl.report.fold.folded_spans import FoldedSpans, StepRecord
from otel_rl.report.fold.run_fold import RunFold
from otel_rl.report.fold.writer import VIEWED
from otel_rl.report.read.device_points import DevicePoints
from otel_rl.report.read.last_points import LastPoints
from otel_rl.report.read.late_loops import EventLoopPoints
from otel_rl.report.read.single_controller.guest_steps import drivers_first, drivers_of
from otel_rl.report.read.span_attributes import rank_of
from otel_rl.report.rows.flops_rows import FlopsPoints
from otel_rl.report.rows.ledger_rows import LedgerLogs
from otel_rl.report.rows.losses import COUNTED
from otel_rl.report.rows.memory_parts import MemoryPoints
from otel_rl.report.rows.request_rows import RequestPoints
from otel_rl.report.rows.series import SeriesPoints, is_own

if TYPE_CHECKING:
    from otel_rl.journal.columns.decode import SpanColumns

EVENTS: Final = frozenset((v.OPEN, v.ENDED, v.STALL, v.ACTION_TAKEN, v.FLOPS_NOTE, *LedgerLogs.NAMES))
"""The log records that a report is made of."""


@dataclass(slots=True)
class Progress:
    """How far the reading of a run is, for whoever shows it meanwhile."""

    bytes: int = 0
    """Read so far."""
    of: int = 0
    """All that is to be read."""

    @property
    def share(self) -> float:
        """Return the share that is read, from 0 to 1."""
        return min(1.0, self.bytes / self.of) if self.of else 0.0


@dataclass(slots=True)
class Points:
    """The points of a run that a report is made of."""

    numbers: SeriesPoints = field(default_factory=SeriesPoints)
    counts: LastPoints = field(default_factory=LastPoints)
    dropped: LastPoints = field(default_factory=LastPoints)
    """Groups that no step trains on."""
    machine: LastPoints = field(default_factory=LastPoints)
    """What sidecars say of devices, and of records that were sent."""
    requests: RequestPoints = field(default_factory=RequestPoints)
    memory: MemoryPoints = field(default_factory=MemoryPoints)
    flops: FlopsPoints = field(default_factory=FlopsPoints)
    loops: EventLoopPoints = field(default_factory=EventLoopPoints)
    devices: DevicePoints = field(default_factory=DevicePoints)
    stepped: Counter[Rank] = field(default_factory=Counter)
    resource: Attributes = field(default_factory=dict)
    begin_ns: int = 0
    end_ns: int = 0

    def adders(self) -> dict[str, Callable[[PointView], None]]:
        """Return what points are added to, by name."""
        collectors = self.numbers, self.requests, self.flops, self.memory, self.loops, self.devices
        adders: dict[str, Callable[[PointView], None]] = {name: one.add for one in collectors for name in one.NAMES}
        adders |= dict.fromkeys(COUNTED, self.counts.add)
        adders |= dict.fromkeys((v.GPU_MEMORY_LIMIT, v.SELF_SHIPPED), self.machine.add)
        adders[v.GROUPS_DROPPED] = self.dropped.add
        adders[v.STEP_TIME] = self._add_step
        return adders

    def _add_step(self, point: PointView) -> None:
        self.stepped[rank_of(point.resource)] += 1
        self.resource, self.end_ns = point.resource, max(self.end_ns, point.time_ns)


class RunReading:
    """A run as far as it was read. Nothing is read twice; ``finish`` ends it.

    Cost: 7 us a span, 2 us a point.
    """

    def __init__(self) -> None:
        self.points = Points()
        self.ledger = LedgerLogs()
        self.stalls: list[LogView] = []
        self.actions: list[LogView] = []
        self.flops_notes: dict[str, None] = {}
        """Sentences, each once, in order."""
        self.journals: list[Journal] = []
        self.kept_bytes: int = 0
        """The size of what was read when this was kept (``cache.py``)."""
        self._bookmarks: defaultdict[str, Bookmark] = defaultdict(Bookmark)
        """By writer."""
        self._resources: defaultdict[str, dict[bytes, Attributes]] = defaultdict(dict)
        self._spans = RunFold()
        self._open: defaultdict[str, OpenRecords] = defaultdict(dict)

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"journals": [], "kept_bytes": self.read_bytes()}

    def fits(self, run: Run) -> bool:
        """Return whether a run begins with what was read: all files are there, and its driver was known."""
        known = {journal.identity.writer: journal.segments for journal in run.journals}
        is_led = bool(drivers_of(run)) and not self._spans.is_led and bool(self._spans.writers)
        return not is_led and all(one.fits(known.get(writer, ())) for writer, one in self._bookmarks.items())

    def attach(self, run: Run) -> None:
        """Take the files as they are now: what is in there will be read."""
        self.journals = drivers_first(run).journals
        self._spans.is_led |= bool(drivers_of(run))
        created = [one.identity.created_ns for one in self.journals if one.identity.created_ns]
        self.points.begin_ns = min(created, default=0)
        for journal in self.journals:
            writer = journal.identity.writer
            journal.bookmark, journal.resources = self._bookmarks[writer], self._resources[writer]
            journal.bookmark.is_written = journal.alive()  # first: meanwhile the writer may finish a frame and end

    def read(self, progress: Progress | None = None) -> None:
        """Read what was not read yet.

        Log records and points come before spans: a step's spans are journaled before its points, so that a run that
        goes on has the spans of each step that has points, and the end of each stage that was open.
        """
        self.read_numbers()
        self.read_spans(progress)

    def read_numbers(self) -> None:
        """Read log records and points."""
        for journal in self.journals:
            self._read_logs(journal)
        for journal in self.journals:
            self._read_points(journal)

    def read_spans(self, progress: Progress | None = None) -> None:
        """Read spans."""
        progress = Progress() if progress is None else progress
        progress.of = sum(segment.size for journal in self.journals for segment in journal.segments)
        for journal in self.journals:
            self._spans.read(journal, self._batches(journal, progress))

    def open_stages(self) -> list[OpenView]:
        """Return the stages that have not ended, as ``Run.open_stages`` does."""
        return open_stages((journal, self._open[journal.identity.writer]) for journal in self.journals)

    @property
    def closed_steps(self) -> list[StepRecord]:
        """Return the steps whose traces are over so far, in the order in which these were closed."""
        return self._spans.found.steps

    def pending_steps(self, window_ns: float) -> list[StepRecord]:
        """Return the steps of the traces that may not be over.

        Args:
            window_ns: only those that ended within so much time.
        """
        return self._spans.pending_steps(window_ns)

    def finish(self, opened: list[OpenView]) -> FoldedSpans:
        """Close what is open, as its process died in it."""
        return self._spans.finish([one.closed(VIEWED) for one in opened if not one.alive])

    def _read_logs(self, journal: Journal) -> None:
        for log in logs_of(journal, EVENTS, unread=True):
            if log.event_name in LedgerLogs.NAMES:
                self.ledger.add(log)
            elif log.event_name == v.STALL:
                self.stalls.append(log)
            elif log.event_name == v.ACTION_TAKEN:
                self.actions.append(log)
            elif log.event_name == v.FLOPS_NOTE:
                self.flops_notes[log.body] = None
            else:
                note_open(self._open[journal.identity.writer], log)

    def _read_points(self, journal: Journal) -> None:
        adders = self.points.adders()
        for point in points_of(journal, lambda name: name in adders or name not in v.METRICS, unread=True):
            if add := adders.get(point.name):
                add(point)
            elif is_own(point):
                self.points.numbers.add(point)

    def _batches(self, journal: Journal, progress: Progress) -> Iterator[SpanColumns]:
        opened = self._open[journal.identity.writer]
        for batch in span_columns(journal, unread=True):
            note_ended(opened, batch)
            progress.bytes = self.read_bytes()
            yield batch

    def read_bytes(self) -> int:
        """Return the size of what was read."""
        return sum(end for one in self._bookmarks.values() for end in one.ends.values())


def read_run(run: Run) -> RunReading:
    """Read all of a run."""
    reading = RunReading()
    reading.attach(run)
    reading.read()
    return reading
