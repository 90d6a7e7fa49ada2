"""Build the report of a run, section by section."""

from __future__ import annotations

from typing import Any

from otel_rl.journal.read import Run
from otel_rl.report.data.report import FORMAT, Report
from otel_rl.report.screen import BELOW, SCREEN
from otel_rl.report.source import Points, Source


def build_report(run: Run, now_ns: int, points: Points | None = None) -> Report:
    """Make the report of a run, which may be running; what is alive, and its open stages, last until now."""
    source = Source(run, now_ns, points)
    parts = [SCREEN, *BELOW.values()]
    makers = {name: make for part in parts for section in part for name, make in section.data.items()}
    made: dict[str, Any] = {name: make(source) for name, make in makers.items()}
    return Report(format=FORMAT, **made)
