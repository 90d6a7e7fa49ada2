"""Reading a run: from its files to spans, points, log records and the stages that are still open.

A run may be read while it is written. Damage is never raised: what is whole is read, what is not is listed. Reading
needs neither the OpenTelemetry SDK nor the process that wrote the journal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from otel_rl import vocabulary
from otel_rl.journal.columns.messages import logs, span_links
from otel_rl.journal.files import SUFFIX, Journal, find_journals
from otel_rl.journal.frame import Damage, Frame, Signal
from otel_rl.journal.views import LinkView, LogView, OpenView, PointView, SpanView, Wanted

if TYPE_CHECKING:
    from otel_rl.journal.columns.decode import SpanColumns

__all__ = ["Journal", "JournalNotFound", "LinkView", "LogView", "OpenView", "PointView", "Run", "SpanView", "open_run"]


class JournalNotFound(Exception):
    """There is no run; the message says what to do."""


class Run:
    """The journals of one run, one for each process that wrote."""

    def __init__(self, path: Path, journals: list[Journal]) -> None:
        self.path = path
        self.journals = journals

    @property
    def damage(self) -> list[Damage]:
        return [damage for journal in self.journals for damage in journal.damage]

    def alive(self) -> bool:
        """Return whether a process that records it lives; its sidecar does not count."""
        return any(journal.alive() for journal in self.journals if not journal.identity.is_sidecar)

    def frames(self, signal: Signal) -> Iterator[tuple[Journal, Frame]]:
        for journal in self.journals:
            for _, frame in journal.frames(signal):
                yield journal, frame

    def spans(self, keys: Collection[str] | None = ()) -> Iterator[SpanView]:
        """Read the finished spans.

        Args:
            keys: attributes to decode; None for all.

        Cost: 1.5 us a span, and 0.1 us for each attribute that is decoded.
        """
        for journal in self.journals:
            for spans in span_columns(journal):
                yield from spans.views(journal, keys)

    def closed_spans(
        self, keys: Collection[str] | None = (), opened: Iterable[OpenView] | None = None
    ) -> Iterator[SpanView]:
        """Read the finished spans, then the stages in which dead processes ended, closed at their last sign of life.

        The latter always have ``rl.truncated`` among their attributes.

        Args:
            keys: attributes to decode; None for all.
            opened: what ``open_stages`` returned, if that is known.
        """
        yield from self.spans(keys)
        opened = self.open_stages() if opened is None else opened
        yield from (stage.closed(keys) for stage in opened if not stage.alive)

    def open_stages(self, *, with_waits: bool = False) -> list[OpenView]:
        """Find the stages that have not ended, of living and of dead processes, the earliest first.

        Each is in the journal as an ``rl.stage.open`` record. Its body is the span's name; its attributes are those of
        the span and ``rl.stage``, ``otel_rl.start_time`` and ``otel_rl.parent_id``. The latest record of a span counts.
        A stage has ended if its span, or an ``rl.stage.ended`` record, is there.

        Args:
            with_waits: also the waits of ranks for their controller, which neither hang nor end a process.
        """
        records = ((journal, _open_records(journal)) for journal in self.journals)
        return open_stages(records, with_waits=with_waits)

    def points(self, wanted: Wanted = None) -> Iterator[PointView]:
        """Read the points of one metric, of those whose name a function selects, or all.

        The points of counters and histograms are cumulative (``last_points``).

        Cost: 2 us a point that is wanted, 5 us a histogram, 0.2 us another.
        """
        for journal in self.journals:
            yield from points_of(journal, wanted)

    def last_points(self, name: str | None = None) -> list[PointView]:
        """Read the last point of every metric, attributes, resource and journal."""
        last: dict[tuple[object, ...], PointView] = {}
        for point in self.points(name):
            key = (point.journal, point.name, id(point.resource), frozenset(point.attributes.items()))
            if key not in last or point.time_ns >= last[key].time_ns:
                last[key] = point
        return list(last.values())

    def logs(self, events: str | Collection[str] | None = None) -> Iterator[LogView]:
        """Read the log records, all or those of an event or some."""
        events = (events,) if isinstance(events, str) else events
        for journal in self.journals:
            yield from logs_of(journal, events)


def open_run(path: str | Path, elsewhere: Path | None = None) -> Run:
    """Open the directory of a run, or one of its files; its processes may have gone on elsewhere when a disk was full.

    Raises:
        JournalNotFound: there is none, or it cannot be read.
    """
    path = Path(path)
    try:
        path.stat()
        journals = find_journals(path, elsewhere)
    except OSError as error:
        raise JournalNotFound(_why_not(path, error)) from error
    if not journals:
        raise JournalNotFound(_why_empty(path))
    return Run(path, journals)


def _why_not(path: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{path} does not exist; give the directory of a run, which otel_rl names when it starts and ends"
    advice = "; read it as the user who ran the training" if isinstance(error, PermissionError) else ""
    return f"{path} cannot be read: {error.strerror or error}{advice}"


def _why_empty(path: Path) -> str:
    runs = sorted(file.parent.name for file in path.glob(f"[!.]*/*{SUFFIX}")) if path.is_dir() else []
    if runs:
        names = ", ".join(dict.fromkeys(runs))
        return f"{path} holds runs and is none itself; give one of them: {names}"
    if path.is_file():
        return f"{path} is no file of a journal; give the directory of a run, which otel_rl names when it ends"
    return f"{path} holds no journal (*{SUFFIX}); was the training instrumented, and did it live longer than a second?"


def span_columns(journal: Journal, *, unread: bool = False) -> Iterator[SpanColumns]:
    """Read the finished spans of a writer as columns, some thousands at a time; a request that is no OTLP is damage.

    Args:
        journal: the writer's.
        unread: only those that ``journal.bookmark`` has not come to, as in the functions below.

    Cost: 0.3 to 0.9 us a span.
    """
    from otel_rl.journal.columns.decode import decode_spans  # numpy: a command that reads nothing does without it

    for segment, frames in journal.batches("traces", unread=unread):
        spans = decode_spans([frame.payload for frame in frames])
        for number in spans.refused:
            journal.undecodable(segment, frames[number])
        yield spans


def points_of(journal: Journal, wanted: Wanted = None, *, unread: bool = False) -> Iterator[PointView]:
    """Read the points of a writer."""
    from otel_rl.journal.columns.decode import decode_points

    for segment, frames in journal.batches("metrics", unread=unread):
        points = decode_points([frame.payload for frame in frames])
        yield from points.views(journal, wanted)
        for number in points.refused:
            journal.undecodable(segment, frames[number])


def logs_of(journal: Journal, events: Collection[str] | None = None, *, unread: bool = False) -> Iterator[LogView]:
    """Read the log records of a writer, all or those of some events."""
    for segment, frame in journal.unread("logs") if unread else journal.frames("logs"):
        try:
            yield from logs(frame.payload, journal, events)
        except DecodeError:
            journal.undecodable(segment, frame)


def links_of(journal: Journal) -> Iterator[LinkView]:
    """Read the links of the spans of a writer. Cost: 10 us a span of the requests that have some."""
    for segment, frame in journal.frames("traces"):
        try:
            yield from span_links(frame.payload, journal)
        except DecodeError:
            journal.undecodable(segment, frame)


OpenRecords = dict[bytes, LogView]
"""The last ``rl.stage.open`` record of each span that has not ended, by its id."""


def note_open(records: OpenRecords, log: LogView) -> None:
    """Note a record of a stage that is open, or that has ended without a span."""
    if log.event_name == vocabulary.OPEN:
        records[log.span_id] = log
    elif log.event_name == vocabulary.ENDED:
        records.pop(log.span_id, None)


def note_ended(records: OpenRecords, spans: SpanColumns) -> None:
    """Note that some spans have ended."""
    for span_id in records.keys() & set(spans.rows["id"].tolist()) if records else ():
        del records[span_id]


def _open_records(journal: Journal) -> OpenRecords:
    records: OpenRecords = {}
    for log in logs_of(journal, (vocabulary.OPEN, vocabulary.ENDED)):
        note_open(records, log)
    for spans in span_columns(journal) if records else ():
        note_ended(records, spans)
    return records


def open_stages(writers: Iterable[tuple[Journal, OpenRecords]], *, with_waits: bool = False) -> list[OpenView]:
    """Return the stages of some writers that are open, the earliest first; see ``Run.open_stages``."""
    stages = [
        stage
        for journal, records in writers
        for stage in _open_stages(journal, records)
        if with_waits or stage.attributes.get(vocabulary.IDLE_REASON) != "controller"
    ]
    return sorted(stages, key=lambda stage: stage.start_ns)


def _open_stages(journal: Journal, records: OpenRecords) -> list[OpenView]:
    if not records:
        return []
    known_from = journal.spans_known_from
    alive = journal.alive()
    if not alive:
        records = records | _with_trace({span_id: log for span_id, log in records.items() if not log.trace_id}, journal)
    named_ns = _named_ns(records.values())
    return [_open_stage(log, alive, named_ns) for log in records.values() if log.time_ns >= known_from]


def _named_ns(records: Collection[LogView]) -> int:
    """Return the time of the last record that names the last step of a process whose clock was set, else 0."""
    last = max((log for log in records if vocabulary.CLOCK_SET in log.attributes), key=_unset_ns, default=None)
    return 0 if last is None else max(log.time_ns for log in records if log.trace_id == last.trace_id)


def _unset_ns(log: LogView) -> int:
    return log.time_ns - int(str(log.attributes[vocabulary.CLOCK_SET]))


def _with_trace(unknown: dict[bytes, LogView], journal: Journal) -> dict[bytes, LogView]:
    """Put the stages of a process that died before it knew its attempt into the trace of the spans inside them."""
    spans = (span for columns in span_columns(journal) for span in columns.views(journal, ())) if unknown else ()
    trace_id = next((span.trace_id for span in spans if span.parent_id in unknown), b"")
    return {span_id: replace(log, trace_id=trace_id) for span_id, log in unknown.items()}


def _open_stage(log: LogView, alive: bool, named_ns: int) -> OpenView:
    attributes = dict(log.attributes)
    start_ns = int(str(attributes.pop(vocabulary.START_TIME, log.time_ns)))
    parent_id = bytes.fromhex(str(attributes.pop(vocabulary.PARENT_ID, "")))
    return OpenView(
        log.body, log.trace_id, log.span_id, parent_id, start_ns, attributes, log.resource, log.journal, alive, named_ns
    )
