"""Spans, points and log records of a journal as plain values."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from otel_rl import vocabulary
from otel_rl.records import Attributes

if TYPE_CHECKING:
    from otel_rl.journal.files import Journal

Kind = Literal["gauge", "counter", "histogram"]
Wanted = str | Callable[[str], bool] | None
"""The metrics whose points are decoded: one name, a function of the name, or all."""


class SpanView(NamedTuple):
    """A finished span, or one that a reader closed, then with ``rl.truncated``.

    It is a tuple since a run has millions of spans, and a frozen dataclass takes three times as long to make.
    """

    name: str
    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    start_ns: int
    end_ns: int
    status_code: int
    """0 unset, 1 ok, 2 error."""
    attributes: Attributes
    resource: Attributes
    journal: Journal
    is_own: bool = True


@dataclass(slots=True)
class PointView:
    """One point of a metric: a gauge or counter has ``value``, a histogram the fields after it.

    An exponential histogram has boundaries, too: the values in bucket i are above boundary i-1, and at most boundary i.
    It is not frozen since a run has millions of points, and a frozen one takes four times as long to make.
    """

    name: str
    kind: Kind
    unit: str
    time_ns: int
    start_ns: int
    """The time when counting began; 0 for a gauge."""
    attributes: Attributes
    resource: Attributes
    journal: Journal
    value: float = 0.0
    count: int = 0
    sum: float = 0.0
    min: float = 0.0
    max: float = 0.0
    boundaries: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LogView:
    """A log record."""

    event_name: str
    time_ns: int
    body: str
    severity: int
    trace_id: bytes
    span_id: bytes
    attributes: Attributes
    resource: Attributes
    journal: Journal


class LinkView(NamedTuple):
    """A link of a span to another one."""

    trace_id: bytes
    span_id: bytes
    linked_trace: bytes
    linked_span: bytes
    attributes: Attributes
    resource: Attributes


@dataclass(frozen=True, slots=True)
class OpenView:
    """A stage that its process began and that has no end in the journal."""

    name: str
    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    start_ns: int
    attributes: Attributes
    resource: Attributes
    journal: Journal
    alive: bool
    """Whether the process lives, so that the stage goes on or hangs; else the process died in it."""
    named_ns: int = 0
    """If the process's clock was set: the time of the last record that names its step. Other times may be older."""

    @property
    def last_ns(self) -> int:
        """Return the last sign of life of its process, ns since 1970."""
        return self.named_ns or self.journal.last_ns

    def closed(self, keys: Collection[str] | None = None) -> SpanView:
        """Make a span of it that ends at its process's last sign of life, with ``rl.truncated`` among its attributes.

        Args:
            keys: attributes to keep; None for all.
        """
        kept = {key: value for key, value in self.attributes.items() if keys is None or key in keys}
        kept.pop(vocabulary.STAGE, None)  # it is the name once more
        end_ns = max(self.start_ns, self.last_ns)
        return SpanView(
            self.name, self.trace_id, self.span_id, self.parent_id, self.start_ns, end_ns, 0,
            {**kept, vocabulary.TRUNCATED: True}, self.resource, self.journal,
        )  # fmt: skip
