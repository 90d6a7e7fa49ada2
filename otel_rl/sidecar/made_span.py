"""A span that the sidecar makes, as the encoder reads spans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
