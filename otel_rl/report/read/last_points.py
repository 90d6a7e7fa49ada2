"""The last point of each cumulative stream: what a counter or a histogram has come to."""

from __future__ import annotations

from otel_rl.journal.read import PointView


class LastPoints:
    """Keeps one point of each writer, metric and set of attributes."""

    def __init__(self) -> None:

        self._last: dict[tuple[object, ...], PointView] = {}

    def add(self, point: PointView) -> None:
        """Take a point in; the one that was journaled later counts, whatever a clock that was set says."""
        self._last[point.journal.identity.writer, point.name, frozenset(point.attributes.items())] = point

    def points(self) -> list[PointView]:
        """List them, a stream that was seen earlier first."""
        return list(self._last.values())
