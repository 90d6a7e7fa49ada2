"""The records of the four log layers as plain values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from otel_rl import vocabulary as v
from otel_rl.journal.read import Run
from otel_rl.journal.views import LogView, SpanView

LAYERS = (v.LOOP_LINE, v.ROLLOUT_LINE, v.UPDATE_LINE, v.SAMPLE_RECORD)


class Record(NamedTuple):
    """One record; ``span`` is the name of the span that it belongs to."""

    event: str
    span: str
    body: str
    attributes: dict[str, Any]
    severity: int = 9


def layered(run: Run, *events: str) -> list[LogView]:
    """Return the records of some layers, or of all, in the order of the journal."""
    return [log for log in run.logs() if log.event_name in (events or LAYERS)]


def records(run: Run, *events: str) -> list[Record]:
    """Return the same as plain values; the span is empty where the journal has none of its ids."""
    spans = {(span.trace_id, span.span_id): span.name for span in run.spans()}
    return [
        Record(
            log.event_name,
            spans.get((log.trace_id, log.span_id), ""),
            log.body,
            dict(log.attributes),
            log.severity,
        )
        for log in layered(run, *events)
    ]


def span_of(log: LogView, spans: Iterable[SpanView]) -> SpanView:
    """Return the span that a record belongs to."""
    (found,) = (span for span in spans if (span.trace_id, span.span_id) == (log.trace_id, log.span_id))
    return found
