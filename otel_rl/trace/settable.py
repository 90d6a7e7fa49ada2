"""What a program may set on a span: attributes, events, links, name and status, as OpenTelemetry's API has it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from opentelemetry.trace import Span, SpanContext
from opentelemetry.trace.status import Status, StatusCode

from otel_rl import vocabulary
from otel_rl.clock import monotonic_ns
from otel_rl.guard import errors, guard
from otel_rl.process.state import Trace, state
from otel_rl.records import SpanEvent, SpanLink, Value
from otel_rl.trace.values import NUMBERS, clean, clean_all, clean_key

MAX_KEPT = 1024
"""Attributes, events and links that an open stage keeps; the encoder keeps 128 of them and counts the others."""


class Settable(Span):
    """A span that keeps what is set on it until it has ended."""

    __slots__ = ("attributes", "ended", "events", "links", "name", "status", "trace")

    name: str
    trace: Trace | None
    ended: int
    """Monotonic, ns; 0 while open."""
    attributes: dict[str, Value] | None
    events: list[SpanEvent] | None
    links: list[SpanLink] | None
    status: tuple[int, str] | None

    def set_attribute(self, key: str, value: Any) -> None:
        """Set one attribute; a tensor on a device is described and not read.

        On a stage that has ended, this and all else that is set is ignored.
        """
        if self.ended:
            return
        cleaned = value if type(value) in NUMBERS else clean(value)
        if type(key) is not str:
            key = clean_key(key)
        if cleaned is None or not key:
            return
        if self.attributes is None:
            self.attributes = {}
        elif len(self.attributes) >= MAX_KEPT and key not in self.attributes:
            errors["keep more than 1,024 attributes of a stage"] += 1
            return
        self.attributes[key] = cleaned

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Set several attributes."""
        with guard("set attributes"):
            for key, value in attributes.items():
                self.set_attribute(key, value)

    def add_event(self, name: str, attributes: Mapping[str, Any] | None = None, timestamp: int | None = None) -> None:
        """Add a point in time; ``timestamp`` in ns since 1970. A stage that was never opened has no now."""
        if self.ended or (self.trace is None and timestamp is None):
            return
        time_ns = timestamp or monotonic_ns() + (self.trace.anchor if self.trace else 0)
        with guard("add an event"):
            self.events = _with_room(self.events)
            self.events.append(SpanEvent(clean_key(name), time_ns, clean_all(attributes)))

    def add_link(self, context: SpanContext, attributes: Mapping[str, Any] | None = None) -> None:
        """Refer to another span."""
        if self.ended:
            return
        with guard("add a link"):
            self.links = _with_room(self.links)
            self.links.append(SpanLink(context.trace_id, context.span_id, clean_all(attributes)))

    def update_name(self, name: str) -> None:
        """Rename the span."""
        if not self.ended:
            self.name = clean_key(name)

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """Set the status; ok is final and unset says nothing, as OpenTelemetry wants it.

        OpenTelemetry itself puts the text of the exception that is being handled there: that is content.
        """
        code, text = (status.status_code, status.description) if isinstance(status, Status) else (status, description)
        is_final = self.ended or (self.status is not None and self.status[0] == StatusCode.OK.value)
        if not is_final and code in (StatusCode.OK, StatusCode.ERROR):
            description = str(clean(text) or "") if code is StatusCode.ERROR else ""
            self.status = (code.value, "" if is_content(description) else description)

    def record_exception(
        self,
        exception: BaseException,
        attributes: Mapping[str, Any] | None = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        """Add an exception event; text and traceback are content, so only with ``OTEL_RL_CAPTURE_CONTENT``."""
        values: dict[str, Any] = {vocabulary.EXCEPTION_TYPE: type(exception).__qualname__, **(attributes or {})}
        if state.config.captures_errors:
            import traceback

            values[vocabulary.EXCEPTION_MESSAGE] = text_of(exception)
            values[vocabulary.EXCEPTION_STACKTRACE] = "".join(traceback.format_exception(exception))
        self.add_event("exception", values, timestamp)


def _with_room(items: list[Any] | None) -> list[Any]:
    if items is None:
        return []
    if len(items) >= MAX_KEPT:
        errors["keep more than 1,024 events or links of a stage"] += 1
        del items[0]
    return items


def text_of(error: BaseException) -> str:
    """Return the text of an exception; nothing if the exception itself fails to say it."""
    with guard("read the text of an exception"):
        return str(error)
    return ""


def is_content(description: str) -> bool:
    """Return whether a description repeats the text of the exception being handled, and texts are not to be kept."""
    error = sys.exc_info()[1]
    text = "" if error is None or state.config.captures_errors else text_of(error)
    return bool(text) and text in description
