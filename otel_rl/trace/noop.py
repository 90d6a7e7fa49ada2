"""A stage where nothing may be recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.trace import INVALID_SPAN_CONTEXT, SpanContext


class NoStage:
    """What ``stage`` returns while ``torch.compile`` traces: nothing that a graph would have to break for."""

    def __enter__(self) -> NoStage:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def set_attribute(self, key: str, value: object) -> None:
        """Ignore the attribute."""

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Ignore the attributes."""

    def add_event(self, *event: object, **more: object) -> None:
        """Ignore the event."""

    def add_link(self, *link: object, **more: object) -> None:
        """Ignore the link."""

    def record_exception(self, *exception: object, **more: object) -> None:
        """Ignore the exception."""

    def set_status(self, *status: object, **more: object) -> None:
        """Ignore the status."""

    def update_name(self, name: str) -> None:
        """Ignore the name."""

    def end(self, end_time: int | None = None) -> None:
        """Ignore the end."""

    def is_recording(self) -> bool:
        """Keep nothing."""
        return False

    def get_span_context(self) -> SpanContext:
        """Propagate nothing."""
        return INVALID_SPAN_CONTEXT
