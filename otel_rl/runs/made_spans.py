"""Spans that a reader makes, as OTLP requests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from otel_rl import vocabulary as v
from otel_rl.journal.frame import MAX_PAYLOAD_BYTES
from otel_rl.journal.otlp.encode import SpanEncoder
from otel_rl.journal.otlp.wire import OtlpRequest
from otel_rl.journal.views import SpanView
from otel_rl.runs.spans import text


@dataclass
class MadeSpan:
    """Closed for a process that died, or derived from the spans of several."""

    name: str
    trace_id: int
    span_id: int
    parent_id: int
    start_ns: int
    end_ns: int
    attributes: dict[str, Any] | None
    events: list[Any] | None = None
    links: list[Any] | None = None
    status: tuple[int, str] | None = None
    kind: int = 1


def closed_requests(spans: Iterable[SpanView]) -> list[OtlpRequest]:
    """Encode spans that a reader closed, with all their attributes; the spans of a writer share its resource."""
    found: defaultdict[int, list[SpanView]] = defaultdict(list)
    for span in spans:
        found[id(span.resource)].append(span)
    requests = []
    for of_writer in found.values():
        resource = of_writer[0].resource
        # The writer has cut texts already.
        encoder = SpanEncoder(resource, text(resource, v.DISTRO_VERSION), max_text=MAX_PAYLOAD_BYTES)
        requests += encoder.encode(map(_made, of_writer))
    return requests


def _made(span: SpanView) -> MadeSpan:
    ids = [int.from_bytes(value, "big") for value in (span.trace_id, span.span_id, span.parent_id)]
    return MadeSpan(span.name, ids[0], ids[1], ids[2], span.start_ns, span.end_ns, dict(span.attributes))
