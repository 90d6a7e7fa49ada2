"""Encoding records into OTLP requests, which parse to what the stock encoder makes.

``_native.c`` encodes the spans whose values need no cleaning, if it was built. ``SpanEncoder`` encodes all others (with
lists, long strings, large numbers, events or links) through ``Cleaner``. Where both can, they write the same bytes.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, cast

from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, SeverityNumber
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from otel_rl.journal.frame import Signal
from otel_rl.journal.in_c import find_native
from otel_rl.journal.otlp.clean import MAX_ATTRIBUTES, MAX_TEXT, UNENCODABLE, Cleaner
from otel_rl.journal.otlp.encode_metrics import MetricEncoder
from otel_rl.journal.otlp.wire import Encoded, Envelope, OtlpBatch, OtlpRequest, record
from otel_rl.records import Attributes, Log, MetricPoints, Span

FORM: Final = 3
"""The interface of ``_native.c``; a build of another version is not used."""

__all__ = ["OtlpRequest", "SpanEncoder"]

CHUNK: Final = 200
"""Stages that are encoded in one call, which keeps the interpreter's lock for 0.1 to 0.5 ms."""
EncodedStages = tuple[bytes, int, int, int]
"""Encoded stages, the index after the last one, their first begin and last end (ns since 1970)."""
FLAGS: Final = 0x100
"""The stock encoder sets these flags: the parent is not remote."""
SEVERITIES: Final = {9: "INFO", 13: "WARN", 17: "ERROR"}


native = find_native("otel_rl.journal.otlp._native", FORM)


class SpanEncoder:
    """Encodes the records of one process; one thread at a time."""

    def __init__(
        self, resource: Attributes, version: str = "", *, max_text: int = MAX_TEXT, stage: type[Span] | None = None
    ) -> None:
        """Prepare an encoder.

        Args:
            resource: attributes of the process, part of every request.
            version: of the instrumentation scope ``otel_rl``.
            max_text: characters that are kept of a string in a span or a log record, unless something is found by it.
            stage: the class of most spans (``Stage``), whose fields the C reads itself.
        """
        self._version = version
        self._cleaner = Cleaner(max_text)
        limits = MAX_ATTRIBUTES, min(max_text, sys.maxsize), MAX_TEXT
        self._fast: Callable[..., bytes] | None = partial(native.span, *limits) if native else None
        self._stages: Callable[..., EncodedStages] | None = None
        if native and stage:
            self._stages = partial(native.stages, *limits, stage)
        self._metrics = MetricEncoder(self._cleaner)
        self.dropped: Counter[tuple[Signal, str]] = Counter()
        """Records that could not be encoded, by signal and reason (``unencodable``)."""
        self.set_resource(resource)

    @property
    def cleaned(self) -> Mapping[str, int]:
        """Return what had to be changed to be encoded, by kind; see ``Cleaner.counts``."""
        return self._cleaner.counts

    def set_resource(self, resource: Attributes) -> None:
        """Use another resource from now on: the first span comes before rank and attempt are known."""
        self._envelope = Envelope(resource, self._version, self._cleaner)

    def encode(self, spans: Iterable[Span]) -> list[OtlpRequest]:
        """Encode finished spans.

        Cost (``benchmarks/encode.py``), of a stage with 15 attributes: 0.02 of what the stock encoder takes, 0.5 in
        Python.
        """
        batch = OtlpBatch("traces", self._envelope)
        given = list(spans)
        index = 0
        while index < len(given):
            first, limit = index, min(index + CHUNK, len(given))
            if self._stages:
                data, index, first_ns, last_ns = self._stages(batch.room, given, first, limit)
                if index > first:
                    batch.add((data, first_ns, last_ns, index - first))
            if index < limit:
                self._one(given[index], batch)
                index += 1
        return batch.finish()

    def encode_logs(self, logs: Iterable[Log]) -> list[OtlpRequest]:
        """Encode log records. Cost: 15 us each."""
        batch = OtlpBatch("logs", self._envelope)
        for log in logs:
            try:
                message = self._log(log)
                time_ns = message.time_unix_nano
                batch.add((record(message.SerializeToString()), time_ns, time_ns, 1))
            except UNENCODABLE:
                self.dropped["logs", "unencodable"] += 1
        return batch.finish()

    def encode_metrics(self, metrics: Iterable[MetricPoints]) -> list[OtlpRequest]:
        """Encode metric points. Cost: 1 us a point plus 1 us a metric."""
        batch = OtlpBatch("metrics", self._envelope)
        for metric in metrics:
            try:
                failed = self._metrics.encode(metric, batch)
            except UNENCODABLE:
                failed = 1
            if failed:
                self.dropped["metrics", "unencodable"] += failed
        return batch.finish()

    def _one(self, span: Span, batch: OtlpBatch) -> None:
        """Encode a span in C if it can be, else in Python; count it if even that is impossible."""
        try:
            batch.add(self._in_c(span) or self._in_python(span))
        except UNENCODABLE:
            self.dropped["traces", "unencodable"] += 1

    def _in_c(self, span: Span) -> Encoded | None:
        if self._fast is None:
            return None
        try:
            start_ns, end_ns = span.start_ns, span.end_ns
            if span.events or span.links or end_ns < start_ns:
                return None
            data = self._fast(
                span.trace_id, span.span_id, span.parent_id, span.name, span.kind, start_ns, end_ns, span.status,
                span.attributes,
            )  # fmt: skip
        except UNENCODABLE:
            return None
        return data, start_ns, end_ns, 1

    def _in_python(self, span: Span) -> Encoded:
        """Encode any span; raises one of ``UNENCODABLE`` if its ids are wrong."""
        message = self._span(span)
        return record(message.SerializeToString()), message.start_time_unix_nano, message.end_time_unix_nano, 1

    def _span(self, span: Span) -> SpanMessage:
        clean = self._cleaner
        start_ns, end_ns = clean.interval(span.start_ns, span.end_ns)
        message = SpanMessage(
            trace_id=span.trace_id.to_bytes(16, "big"),
            span_id=span.span_id.to_bytes(8, "big"),
            parent_span_id=span.parent_id.to_bytes(8, "big") if span.parent_id else b"",
            name=clean.name(span.name),
            kind=cast("SpanMessage.SpanKind.ValueType", span.kind),
            start_time_unix_nano=start_ns,
            end_time_unix_nano=end_ns,
            flags=FLAGS,
        )
        message.dropped_attributes_count = clean.fill(message.attributes, span.attributes)
        message.status.SetInParent()
        if span.status:
            message.status.code = cast("Status.StatusCode.ValueType", span.status[0])
            message.status.message = clean.text(span.status[1])
        self._events(message, span)
        return message

    def _events(self, message: SpanMessage, span: Span) -> None:
        """Add events and links, as many as attributes are allowed."""
        clean, limit = self._cleaner, MAX_ATTRIBUTES
        events, links = span.events or (), span.links or ()
        message.dropped_events_count = max(len(events) - limit, 0)
        message.dropped_links_count = max(len(links) - limit, 0)
        clean.counts["events_dropped"] += message.dropped_events_count + message.dropped_links_count
        for event in events[:limit]:
            target = message.events.add(name=clean.name(event.name), time_unix_nano=clean.time(event.time_ns))
            target.dropped_attributes_count = clean.fill(target.attributes, event.attributes)
        for link in links[:limit]:
            linked = message.links.add(flags=FLAGS)
            linked.trace_id, linked.span_id = link.trace_id.to_bytes(16, "big"), link.span_id.to_bytes(8, "big")
            linked.dropped_attributes_count = clean.fill(linked.attributes, link.attributes)

    def _log(self, log: Log) -> LogRecord:
        clean = self._cleaner
        time_ns = clean.time(log.time_ns)
        message = LogRecord(
            time_unix_nano=time_ns,
            observed_time_unix_nano=time_ns,
            severity_number=cast("SeverityNumber.ValueType", log.severity),
            severity_text=SEVERITIES.get(log.severity, ""),
            event_name=clean.name(log.event_name),
            trace_id=log.trace_id.to_bytes(16, "big") if log.trace_id else b"",
            span_id=log.span_id.to_bytes(8, "big") if log.span_id else b"",
        )
        message.body.string_value = clean.text(log.body, clean.max_name)
        message.dropped_attributes_count = clean.fill(message.attributes, log.attributes)
        return message
