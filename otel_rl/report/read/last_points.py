"""The last point of each cumulative stream: what a counter or a histogram has come to."""

from __future__ import annotations

from otel_rl.journal.read import PointView


class LastPoints:
    """One point of each writer, metric and set of attributes."""

    def __init__(self) -> None:
        self._last: dict[tuple[object, ...], PointView] = {}

    def add(self, point: PointView) -> None:
        """Add a point; the one that was journaled last counts, whatever the time of a clock that was set."""
        self._last[point.journal.identity.writer, point.name, frozenset(point.attributes.items())] = point

    def points(self) -> list[PointView]:
        return list(self._last.values())
