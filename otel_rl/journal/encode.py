"""Encoding records into OTLP requests, at a tenth of the stock encoder's cost.

A span is written into a protobuf message that is kept per (name, kind, status, attribute keys), so that only ids, times
and values are set: 2 to 4 us instead of 34 to 40. What does not fit a template (events, links, lists, strings that
are too long, numbers that are too large) takes the slow way through ``Cleaner``. The result parses to what the stock
encoder makes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, SeverityNumber
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from otel_rl.journal.clean import MAX_ATTRIBUTES, MAX_TEXT, UNENCODABLE, Cleaner
from otel_rl.journal.encode_metrics import MetricEncoder
from otel_rl.journal.frame import Signal
from otel_rl.journal.wire import Batch, Envelope, Request
from otel_rl.records import Attributes, Log, MetricPoints, Span, Value

__all__ = ["Request", "SpanEncoder"]

FLAGS: Final = 0x100
"""What the stock encoder sets: the flags say whether the parent is remote, and it is not."""
MAX_TEMPLATES: Final = 1024
TEMPLATE_BYTES: Final = 4 << 20
"""Encoded bytes after which the templates are made anew: a protobuf message never frees a string that was set over."""
SEVERITIES: Final = {9: "INFO", 13: "WARN", 17: "ERROR"}

_Template = tuple[SpanMessage, tuple[tuple[str, Any], ...], Callable[[], bytes]]
"""The message, its attributes' keys and values to set, and its ``SerializeToString``."""
_NONE: Final[dict[str, Value]] = {}


def _set_text(target: Any, texts: tuple[Value, ...], max_text: int) -> None:
    """Set a list of one text, as the finish reasons of a request are; others take the slow way."""
    (text,) = texts
    if type(text) is not str or len(text) > max_text:
        raise TypeError
    values = target.array_value.values
    if len(values) != 1:
        values.add()
    values[0].string_value = text


class SpanEncoder:
    """Encodes the records of one process; one thread at a time."""

    def __init__(
        self, resource: Attributes, version: str = "", *, max_text: int = MAX_TEXT, max_attributes: int = MAX_ATTRIBUTES
    ) -> None:
        """Prepare an encoder.

        Args:
            resource: attributes of the process, part of every request.
            version: of the instrumentation scope ``otel_rl``.
            max_text: characters that are kept of a string.
            max_attributes: attributes, events and links that are kept of a record.
        """
        self._version = version
        self._cleaner = Cleaner(max_text, max_attributes)
        self._max_text = max_text
        self._metrics = MetricEncoder(self._cleaner)
        self._templates: dict[tuple[Any, ...], _Template] = {}
        self._encoded_bytes = 0
        self.dropped: Counter[tuple[Signal, str]] = Counter()
        """Records that could not be encoded, by signal and reason (``unencodable``)."""
        self.set_resource(resource)

    @property
    def cleaned(self) -> Mapping[str, int]:
        """What had to be changed to be encoded, by kind; see ``Cleaner.counts``."""
        return self._cleaner.counts

    def set_resource(self, resource: Attributes) -> None:
        """Use another resource from now on: rank and attempt are known later than the first span."""
        self._envelope = Envelope(resource, self._version, self._cleaner)

    def encode(self, spans: Iterable[Span]) -> list[Request]:
        """Encode finished spans.

        Cost: 4 us a span with 15 attributes, 2.5 us a small one, 35 us where it takes the slow way.
        """
        batch = Batch("traces", self._envelope)
        add, fast, slow = batch.add, self._fast, self._slow
        for span in spans:
            try:
                start_ns, end_ns = span.start_ns, span.end_ns
                add(fast(span, start_ns, end_ns), start_ns, end_ns)
            except UNENCODABLE:
                slow(span, batch)
        requests = batch.finish()
        self._renew(requests)
        return requests

    def encode_logs(self, logs: Iterable[Log]) -> list[Request]:
        """Encode log records. Cost: 15 us each."""
        batch = Batch("logs", self._envelope)
        for log in logs:
            try:
                message = self._log(log)
                batch.add(message.SerializeToString(), message.time_unix_nano, message.time_unix_nano)
            except UNENCODABLE:
                self.dropped["logs", "unencodable"] += 1
        return batch.finish()

    def encode_metrics(self, metrics: Iterable[MetricPoints]) -> list[Request]:
        """Encode metric points. Cost: 1 us a point plus 1 us a metric."""
        batch = Batch("metrics", self._envelope)
        for metric in metrics:
            try:
                failed = self._metrics.encode(metric, batch)
            except UNENCODABLE:
                failed = 1
            if failed:
                self.dropped["metrics", "unencodable"] += failed
        return batch.finish()

    def _fast(self, span: Span, start_ns: int, end_ns: int) -> bytes:
        """Encode a span by its template; raises one of ``UNENCODABLE`` where it does not fit one."""
        if span.events or span.links or end_ns < start_ns:
            raise ValueError
        attributes = span.attributes or _NONE
        key = (span.name, span.kind, span.status, *attributes)
        template = self._templates.get(key) or self._template(key)
        message, values, serialize = template
        message.trace_id = span.trace_id.to_bytes(16, "big")
        message.span_id = span.span_id.to_bytes(8, "big")
        message.parent_span_id = span.parent_id.to_bytes(8, "big") if span.parent_id else b""
        message.start_time_unix_nano = start_ns
        message.end_time_unix_nano = end_ns
        max_text = self._max_text
        for name, target in values:
            value: Any = attributes[name]
            kind = type(value)
            if kind is str:
                if len(value) > max_text:
                    raise ValueError
                target.string_value = value
            elif kind is int:
                target.int_value = value
            elif kind is float:
                target.double_value = value
            elif kind is bool:
                target.bool_value = value
            elif kind is tuple:
                _set_text(target, value, max_text)
            else:
                raise TypeError
        return serialize()

    def _template(self, key: tuple[Any, ...]) -> _Template:
        """Make the template of a span's shape; raises one of ``UNENCODABLE`` where the shape itself needs cleaning."""
        name, kind, status, *keys = key
        is_long = len(name) > MAX_TEXT or any(len(key) > MAX_TEXT for key in keys)
        is_long = is_long or (status is not None and len(status[1]) > self._max_text)
        if is_long or len(keys) > self._cleaner.max_attributes or "" in keys:
            raise ValueError
        message = SpanMessage(name=name, kind=kind, flags=FLAGS)
        message.status.SetInParent()
        if status:
            message.status.code, message.status.message = status
        values = tuple((key, message.attributes.add(key=key).value) for key in keys)
        if len(self._templates) >= MAX_TEMPLATES:
            self._templates.clear()
        template = message, values, message.SerializeToString
        self._templates[key] = template
        return template

    def _renew(self, requests: Iterable[Request]) -> None:
        self._encoded_bytes += sum(len(request.payload) for request in requests)
        if self._encoded_bytes > TEMPLATE_BYTES:
            self._encoded_bytes = 0
            self._templates.clear()

    def _slow(self, span: Span, batch: Batch) -> None:
        """Encode a span that has no template, cleaned; count it where even that is impossible."""
        try:
            message = self._span(span)
            batch.add(message.SerializeToString(), message.start_time_unix_nano, message.end_time_unix_nano)
        except UNENCODABLE:
            self.dropped["traces", "unencodable"] += 1

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
        clean, limit = self._cleaner, self._cleaner.max_attributes
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
        message.body.string_value = clean.name(log.body)
        message.dropped_attributes_count = clean.fill(message.attributes, log.attributes)
        return message
