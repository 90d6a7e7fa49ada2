"""A stage where nothing may be recorded."""

from __future__ import annotations

from opentelemetry.trace import INVALID_SPAN_CONTEXT, SpanContext


class NoStage:
    """What ``stage`` returns while ``torch.compile`` traces: nothing that a graph would have to break for."""

    def __enter__(self) -> NoStage:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def _ignore(self, *_: object, **__: object) -> None:
        return None

    set_attribute = set_attributes = add_event = add_link = record_exception = _ignore
    set_status = update_name = end = _ignore

    def is_recording(self) -> bool:
        """Keep nothing."""
        return False

    def get_span_context(self) -> SpanContext:
        """Propagate nothing."""
        return INVALID_SPAN_CONTEXT
