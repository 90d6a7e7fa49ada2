"""A run as a trace for Perfetto: a track for each stage of a process, arrows of rollouts, counters."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from otel_rl.exports.arrows import arrows
from otel_rl.journal.read import Journal, PointView, Run, SpanView, span_columns
from otel_rl.query.columns_as_arrays import text_of
from otel_rl.records import Attributes, Value
from otel_rl.report.read.span_attributes import ERROR, rank_of
from otel_rl.runs.spans import iteration_of, label

if TYPE_CHECKING:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackDescriptor

MISSING: Final = "a trace for Perfetto needs its package, which is not installed: pip install 'otel-rl[export]'"
BYTES: Final = "By"
PER_SECOND: Final = "/s"
MOST_STAGES: Final = 500
"""Names of stages that have a track of their own in a process. The spans of the others share one."""
OTHERS: Final = "other spans"
REALTIME, BOOTTIME, SEQUENCE = 1, 6, 1
"""Perfetto's clocks of times since 1970 and of traces, which are the same here; and the one sequence of packets."""


def perfetto_trace(run: Run) -> Iterator[bytes]:
    """Yield a trace in parts, which make a file one after the other.

    Raises:
        ModuleNotFoundError: the package with Perfetto's definitions is not installed.
    """
    try:
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(MISSING, name=error.name) from error
    return _Packets(run, Trace).parts()


class _Packets:
    """The packets of a trace. Memory: tracks, arrows and open stages; spans and points pass through."""

    def __init__(self, run: Run, trace: type[Trace]) -> None:
        self._run, self._new = run, trace
        self._numbers = {journal: number for number, journal in enumerate(run.journals, 1)}
        self._lanes: defaultdict[tuple[Journal, str], list[tuple[float, int]]] = defaultdict(list)
        """Tracks of a stage in a process, and where each is used to, by that time: spans of a track do not overlap."""
        self._counters: dict[tuple[Journal, str, str, tuple[tuple[str, Value], ...]], int] = {}
        self._tracks = len(run.journals)
        """The number of tracks so far; those of the processes are the first."""
        self._out: defaultdict[bytes, list[int]] = defaultdict(list)
        self._in: defaultdict[bytes, list[int]] = defaultdict(list)

    def parts(self) -> Iterator[bytes]:
        for number, arrow in enumerate(arrows(self._run), 1):
            self._out[arrow.source].append(number)
            self._in[arrow.target].append(number)
        opened = self._run.open_stages()
        yield self._head()
        for journal in self._run.journals:
            yield self._process(journal)
        for journal in self._run.journals:
            for columns in span_columns(journal):
                for span in sorted(columns.views(journal, None), key=attrgetter("start_ns", "end_ns")):
                    yield self._slice(span, span.end_ns)
        for stage in opened:
            span = stage.closed()
            yield self._slice(span, None if stage.alive else span.end_ns)
        for point in self._run.points():
            if _is_counter(point):
                yield self._point(point)

    def _head(self) -> bytes:
        """Return what starts the sequence, and says that the times are since 1970."""
        trace = self._new()
        packet = _packet(trace, 0)
        packet.sequence_flags = packet.SEQ_INCREMENTAL_STATE_CLEARED
        for clock in (BOOTTIME, REALTIME):
            packet.clock_snapshot.clocks.add(clock_id=clock, timestamp=1)
        return _bytes(trace)

    def _process(self, journal: Journal) -> bytes:
        trace = self._new()
        number = self._numbers[journal]
        descriptor = self._track(trace, number, 0, "")
        descriptor.process.pid = number  # processes of two hosts may have the same
        descriptor.process.process_name = _process_name(journal)
        descriptor.description = f"{journal.identity.writer}, host {journal.identity.host}"
        return _bytes(trace)

    def _slice(self, span: SpanView, end_ns: int | None) -> bytes:
        trace = self._new()
        name = label(span.name, span.attributes)
        end_ns = None if end_ns is None else max(end_ns, span.start_ns)
        track = self._lane(trace, span, name, math.inf if end_ns is None else end_ns)
        packet = _packet(trace, span.start_ns)
        event = packet.track_event
        event.type, event.track_uuid = event.TYPE_SLICE_BEGIN, track
        step = iteration_of(span.attributes)
        event.name = name if step is None else f"{name}, step {step}"
        event.categories.append(name.partition(" ")[0])
        event.flow_ids.extend(self._out.get(span.span_id, ()))
        event.terminating_flow_ids.extend(self._in.get(span.span_id, ()))
        _annotate(event, span.attributes)
        _annotate(event, {"trace_id": span.trace_id.hex(), "span_id": span.span_id.hex()})
        if span.status_code == ERROR:
            _annotate(event, {"status": "error"})
        if end_ns is not None:
            packet = _packet(trace, end_ns)
            packet.track_event.type, packet.track_event.track_uuid = event.TYPE_SLICE_END, track
        return _bytes(trace)

    def _lane(self, trace: Trace, span: SpanView, name: str, end_ns: float) -> int:
        """Return a track on which nothing overlaps the span; the first of them that was used last.

        Perfetto shows tracks of one name and one process as one.
        """
        if (span.journal, name) not in self._lanes and len(self._lanes) >= MOST_STAGES * len(self._numbers):
            name = OTHERS
        lanes = self._lanes[span.journal, name]
        free = bisect_right(lanes, (span.start_ns, 1 << 62))
        if free:
            _, track = lanes.pop(free - 1)
        else:
            track = self._next()
            self._track(trace, track, self._numbers[span.journal], name)
        insort(lanes, (end_ns, track))
        return track

    def _point(self, point: PointView) -> bytes:
        trace = self._new()
        key = point.journal, point.name, point.unit, tuple(sorted(point.attributes.items()))
        if key not in self._counters:
            self._counters[key] = self._next()
            labels = ", ".join(f"{name} {text_of(value)}" for name, value in key[3])
            name = f"{point.name} ({labels})" if labels else point.name
            descriptor = self._track(trace, self._counters[key], self._numbers[point.journal], name)
            descriptor.counter.unit_name = point.unit
        event = _packet(trace, point.time_ns).track_event
        event.type, event.track_uuid = event.TYPE_COUNTER, self._counters[key]
        event.double_counter_value = point.value
        return _bytes(trace)

    def _track(self, trace: Trace, track: int, parent: int, name: str) -> TrackDescriptor:
        descriptor = _packet(trace, None).track_descriptor
        descriptor.uuid = track
        if parent:
            descriptor.parent_uuid, descriptor.name = parent, name
        return descriptor

    def _next(self) -> int:
        self._tracks += 1
        return self._tracks


def _packet(trace: Trace, time_ns: int | None) -> TracePacket:
    packet = trace.packet.add()
    packet.trusted_packet_sequence_id = SEQUENCE
    if time_ns is not None:
        packet.timestamp = time_ns
    return packet


def _bytes(trace: Trace) -> bytes:
    data: bytes = trace.SerializeToString()
    return data


def _annotate(event: Any, attributes: Attributes) -> None:
    for key, value in attributes.items():
        note = event.debug_annotations.add()
        note.name = key
        if isinstance(value, bool):
            note.bool_value = value
        elif isinstance(value, int):
            note.int_value = value
        elif isinstance(value, float):
            note.double_value = value
        else:
            note.string_value = text_of(value)


def _is_counter(point: PointView) -> bool:
    """Return whether a point is of memory or of a throughput, and can be drawn."""
    is_shown = point.unit == BYTES or point.unit.endswith(PER_SECOND)
    return point.kind == "gauge" and is_shown and math.isfinite(point.value)


def _process_name(journal: Journal) -> str:
    """Return role and rank, as far as a record says them."""
    resource = next(iter(journal.resources.values()), None)
    if resource is None or journal.identity.is_sidecar:
        return journal.identity.writer
    rank = rank_of(resource)
    return f"{rank.role} {rank.rank}"
