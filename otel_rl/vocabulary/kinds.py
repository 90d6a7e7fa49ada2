"""What a name of the vocabulary is: an attribute, a stage (span), a metric or an event (log record)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

SCOPE: Final = "otel_rl"
PROPOSAL: Final = "OpenTelemetry rl.* proposal (#88)"
SEMCONV: Final = "OpenTelemetry semantic conventions"
OURS: Final = "otel_rl"

AttributeType = Literal["string", "int", "double", "boolean", "string[]", "int[]", "double[]"]

ROWS: Final[list[Attribute | Stage | Metric | Event]] = []
"""Every row of the vocabulary in the order of definition; the catalogue is generated from it."""


@dataclass(frozen=True)
class Attribute:
    """One attribute key of a span, a resource, a log record or a metric point."""

    key: str
    type: AttributeType
    where: Literal["resource", "span", "metric", "log"]
    meaning: str
    source: str = OURS


@dataclass(frozen=True)
class Stage:
    """One span name."""

    name: str
    meaning: str
    source: str = OURS
    is_measured: bool = True

    @property
    def duration(self) -> str:
        """The histogram that counts the duration of every such span, sampled or not; empty where there is none."""
        prefix = "gen_ai." if self.source == SEMCONV else ""  # the GenAI conventions give it to metrics, not to spans
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


@dataclass(frozen=True)
class Event:
    """One log record, told apart by its ``event_name``."""

    name: str
    meaning: str
    source: str = OURS


def attribute(
    key: str,
    type: AttributeType,
    where: Literal["resource", "span", "metric", "log"],
    meaning: str,
    source: str = OURS,
) -> str:
    """Define an attribute; returns its key."""
    ROWS.append(Attribute(key, type, where, meaning, source))
    return key


def stage(name: str, meaning: str, source: str = OURS, *, is_measured: bool = True) -> str:
    """Define a span; returns its name."""
    ROWS.append(Stage(name, meaning, source, is_measured))
    return name


def metric(
    name: str,
    kind: Literal["counter", "gauge", "histogram"],
    unit: str,
    meaning: str,
    source: str = OURS,
    boundaries: tuple[float, ...] = (),
) -> str:
    """Define a metric; returns its name."""
    ROWS.append(Metric(name, kind, unit, meaning, source, boundaries))
    return name


def event(name: str, meaning: str) -> str:
    """Define a log record; returns its name."""
    ROWS.append(Event(name, meaning))
    return name
