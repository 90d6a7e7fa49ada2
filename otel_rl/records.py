"""What flows from the recorder through the encoder into the journal: plain values, no OpenTelemetry types."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

Value = str | bool | int | float | Sequence["Value"]
"""An attribute value as the encoder takes it: whatever the user gave has been cleaned into this already."""
Attributes = Mapping[str, Value]


Labels = tuple[tuple[str, str | bool | int | float], ...]
"""Attributes of a metric's series."""


class PendingAttributes(dict[str, Value]):
    """Attributes of which some are still on their way from a device; the flusher keeps their stage pending."""

    is_complete = False
    is_timed = True
    """False while the time that the device takes for the stage is on its way."""


class Span(Protocol):
    """A finished span. Stages and collectives satisfy it by themselves: nothing is copied on the way to the encoder."""

    name: str
    span_id: int
    events: list[SpanEvent] | None
    links: list[SpanLink] | None
    status: tuple[int, str] | None
    """OTLP status code (1 ok, 2 error) and description; None is unset."""
    kind: int
    """OTLP span kind; 1 is internal."""

    @property
    def parent_id(self) -> int:
        """Return the span that it is in; 0 for a root."""

    @property
    def attributes(self) -> dict[str, Value] | None:
        """Return what it says of itself."""

    @property
    def trace_id(self) -> int:
        """Trace id."""

    @property
    def start_ns(self) -> int:
        """Begin, ns since 1970."""

    @property
    def end_ns(self) -> int:
        """End, ns since 1970."""


@dataclass(slots=True)
class SpanEvent:
    """A point in time inside a span."""

    name: str
    time_ns: int
    attributes: Attributes = field(default_factory=dict)


@dataclass(slots=True)
class SpanLink:
    """A reference from a span to another one."""

    trace_id: int
    span_id: int
    attributes: Attributes = field(default_factory=dict)


@dataclass(slots=True)
class Log:
    """A log record; ``event_name`` says which row of the vocabulary it is."""

    event_name: str
    time_ns: int
    attributes: Attributes
    body: str = ""
    severity: int = 9
    """OTLP severity number: 9 is INFO, 13 WARN, 17 ERROR."""
    trace_id: int = 0
    span_id: int = 0


class Count(NamedTuple):
    """Something to add to a counter."""

    name: str
    value: int | float
    labels: Labels = ()


class Point(NamedTuple):
    """One value of a gauge at one time."""

    name: str
    value: int | float
    time_ns: int
    labels: Labels = ()

    @property
    def attributes(self) -> dict[str, Value]:
        """Return the labels as the encoder takes them."""
        return dict(self.labels)


class Measured(NamedTuple):
    """Values to add to a histogram, one at least."""

    name: str
    values: Sequence[float]
    labels: Labels = ()


class FinishedRequests(list[Any]):
    """Requests that are over, still in the engine's own objects.

    Of each the reader that makes it on the flusher's thread, the span it belongs to, how many arguments the reader
    takes, and these: flat, since 100,000 may wait, and the garbage collector would visit an object of each.
    """

    __slots__ = ()

    def number(self) -> int:
        """Return how many they are."""
        number = place = 0
        while place < len(self):
            place += 3 + self[place + 2]
            number += 1
        return number


class RecordQueue(deque[Any]):
    """Records on their way to the flusher."""

    __slots__ = ("finished",)

    def __init__(self) -> None:
        super().__init__()
        self.finished = FinishedRequests()
        """A record that finished requests are added to; it is queued while it is not empty."""

    def renew_finished(self) -> None:
        """Let what finishes from now on come after all that is queued."""
        self.finished = FinishedRequests()


class Deferred(NamedTuple):
    """Work that a hot thread leaves to the flusher, where it delays no training: ``function(*arguments)``."""

    function: Callable[..., Iterable[Count | Point | Measured | Log | FinishedRequests]]
    """Returns what is to be counted, logged or read; it may add attributes to a stage that is queued after it."""
    arguments: tuple[Any, ...]


@dataclass(slots=True)
class Number:
    """One point of a gauge or of a cumulative counter."""

    time_ns: int
    value: int | float
    attributes: Attributes = field(default_factory=dict)


class Exemplar(NamedTuple):
    """One value of a histogram and the span that it comes from."""

    time_ns: int
    value: float
    trace_id: int
    span_id: int


@dataclass(slots=True)
class Distribution:
    """One cumulative point of a histogram; ``counts`` has one entry more than the metric has boundaries.

    Of an exponential one the boundaries are ``buckets.BOUNDS``.
    """

    time_ns: int
    counts: Sequence[int]
    sum: float
    min: float
    max: float
    attributes: Attributes = field(default_factory=dict)
    exemplars: Sequence[Exemplar] = ()


@dataclass(slots=True)
class MetricPoints:
    """The points of one metric that are written together."""

    name: str
    kind: Literal["counter", "gauge", "histogram", "exponential"]
    unit: str
    description: str
    points: Sequence[Number] | Sequence[Distribution] | Sequence[Point]
    start_ns: int = 0
    """When counting began (not of a gauge), ns since 1970."""
    boundaries: Sequence[float] = ()


def signal_of(record: object) -> str:
    """Return what a record becomes: traces, metrics or logs."""
    if isinstance(record, Log):
        return "logs"
    is_number = isinstance(record, (Count, Deferred)) or hasattr(record, "time_ns")  # a point, the load of an engine
    return "metrics" if is_number else "traces"
