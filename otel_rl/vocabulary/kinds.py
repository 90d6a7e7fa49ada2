"""The kinds of names in the vocabulary: attributes, stages (spans), metrics and events (log records)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

SCOPE: Final = "otel_rl"
PROPOSAL: Final = "OpenTelemetry rl.* proposal (#88)"
SEMCONV: Final = "OpenTelemetry semantic conventions"
OURS: Final = "otel_rl"

AttributeType = Literal["string", "int", "double", "boolean", "string[]", "int[]", "double[]"]

DEFINITIONS: Final[list[Attribute | StageName | Metric | Event]] = []
"""The whole vocabulary in the order of definition; the catalogue is generated from it."""


@dataclass(frozen=True)
class Attribute:
    """One attribute key of a span, a resource, a log record or a metric point."""

    key: str
    type: AttributeType
    where: Literal["resource", "span", "metric", "log"]
    meaning: str
    source: str = OURS


@dataclass(frozen=True)
class StageName:
    """One span name."""

    name: str
    meaning: str
    source: str = OURS
    is_measured: bool = True

    @property
    def duration(self) -> str:
        """Return the histogram that counts the duration of every such span, sampled or not; empty if there is none."""
        prefix = "gen_ai." if self.source == SEMCONV else ""  # GenAI metrics have the prefix, spans do not
        return f"{prefix}{self.name}.duration" if self.is_measured else ""


@dataclass(frozen=True)
class Metric:
    """One metric; ``boundaries`` only for a histogram."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    meaning: str
    source: str = OURS
    boundaries: tuple[float, ...] = ()

    @property
    def is_signed(self) -> bool:
        """Return whether it is a histogram of values that may be negative: exponential buckets count those as zero."""
        return bool(self.boundaries) and self.boundaries[0] < 0


@dataclass(frozen=True)
class Event:
    """One log record, identified by its ``event_name``."""

    name: str
    meaning: str
    source: str = OURS


def attribute(key: str, type: AttributeType, meaning: str, source: str = OURS) -> str:
    """Define an attribute of spans; return its key, as the functions below return theirs."""
    return _define(key, Attribute(key, type, "span", meaning, source))


def label(key: str, meaning: str, source: str = OURS, *, type: AttributeType = "string") -> str:
    return _define(key, Attribute(key, type, "metric", meaning, source))


def resource(key: str, type: AttributeType, meaning: str, source: str = OURS) -> str:
    return _define(key, Attribute(key, type, "resource", meaning, source))


def log_attribute(key: str, type: AttributeType, meaning: str) -> str:
    return _define(key, Attribute(key, type, "log", meaning))


def stage(name: str, meaning: str, source: str = OURS, *, is_measured: bool = True) -> str:
    return _define(name, StageName(name, meaning, source, is_measured))


def counter(name: str, unit: str, meaning: str, source: str = OURS) -> str:
    return _define(name, Metric(name, "counter", unit, meaning, source))


def gauge(name: str, unit: str, meaning: str, source: str = OURS) -> str:
    return _define(name, Metric(name, "gauge", unit, meaning, source))


def histogram(name: str, unit: str, meaning: str, boundaries: tuple[float, ...], source: str = OURS) -> str:
    """Define a histogram, with boundaries for stores without exponential ones."""
    return _define(name, Metric(name, "histogram", unit, meaning, source, boundaries))


def event(name: str, meaning: str) -> str:
    return _define(name, Event(name, meaning))


def _define(name: str, found: Attribute | StageName | Metric | Event) -> str:
    DEFINITIONS.append(found)
    return name
