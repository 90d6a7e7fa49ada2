"""What a board is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Panel:
    """One panel: what is seen, in which unit, by which queries."""

    title: str
    text: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    """Each with the legend of its series."""
    kind: str = "timeseries"
    """Or `status` (a row for each rank), `heatmap`, `stat`, `traces` (TraceQL, which no test runs)."""
    stacked: bool = False


@dataclass(frozen=True)
class Row:
    """Panels that are read together."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Annotation:
    """What is drawn over all panels, while its query has series."""

    name: str
    query: str
    title: str
    color: str


@dataclass(frozen=True)
class Board:
    """What one file of JSON is made of."""

    name: str
    title: str
    text: str
    rows: tuple[Row, ...]
    is_comparison: bool = False
    """Whether it takes one run and another, instead of any number."""

    @property
    def panels(self) -> list[Panel]:
        return [panel for row in self.rows for panel in row.panels]


RATIO: Final = "percentunit"
SECONDS: Final = "s"
BYTES: Final = "bytes"
BYTES_RATE: Final = "Bps"
NUMBER: Final = "short"
NATS: Final = "suffix: nat"
TOKENS: Final = "suffix: tokens"
TOKENS_RATE: Final = "suffix: tokens/s"
EVENTS_RATE: Final = "cps"
REQUESTS_RATE: Final = "reqps"
