"""Build the report of a run, section by section."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from otel_rl.journal.read import Run
from otel_rl.report.data.report import FORMAT, Report
from otel_rl.report.screen import BELOW, SCREEN
from otel_rl.report.source import Points, Source


def build_report(run: Run, now_ns: int, points: Points | None = None) -> Report:
    """Make the report of a run, which may be running; what is alive, and its open stages, last until now.

    What cannot be made of it because of an error of ours is empty, and named in ``unmade``.
    """
    source = Source(run, now_ns, points)
    making, kinds = source.making, get_type_hints(Report)
    parts = [SCREEN, *BELOW.values()]
    makers = {name: make for part in parts for section in part for name, make in section.data.items()}
    made: dict[str, Any] = {
        name: making.make("section", name, empty(kinds[name]), make, source) for name, make in makers.items()
    }
    return Report(format=FORMAT, **made, unmade=making.unmade)


def empty(kind: Any) -> Any:
    """Return a value of a type of the report that says nothing."""
    if isinstance(kind, type) and is_dataclass(kind):
        kinds = get_type_hints(kind)
        return kind(**{field.name: empty(kinds[field.name]) for field in fields(kind)})
    origin = get_origin(kind) or kind
    if origin is UnionType:
        return None
    return get_args(kind)[-1] if origin is Literal else origin()
