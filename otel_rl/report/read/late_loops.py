"""The event loops that were late while steps were made."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.journal.read import PointView
from otel_rl.report.data.ranks import Rank
from otel_rl.report.findings.health import LATE_S
from otel_rl.report.fold.folded_spans import StepRecord
from otel_rl.report.read.span_attributes import rank_of
from otel_rl.runs.spans import text


class EventLoopPoints:
    """The readings of a run that are late."""

    NAMES: Final = (v.EVENT_LOOP_LAG,)

    def __init__(self) -> None:
        self._late: defaultdict[tuple[str, Rank], list[tuple[float, int]]] = defaultdict(list)
        """By attempt and rank: how late, s, and when."""

    def add(self, point: PointView) -> None:
        if point.value >= LATE_S:
            process = text(point.resource, v.ATTEMPT_ID), rank_of(point.resource)
            self._late[process].append((point.value, point.time_ns))

    def latest(self, attempt: str, records: Iterable[StepRecord]) -> list[tuple[Rank, float, int]]:
        """Return the processes of an attempt that were late inside a step: by how much at most, and in which step."""
        steps = [record.step for record in records if record.attempt == attempt] if self._late else []
        found = []
        for (known, rank), late in sorted(self._late.items()):
            for lag, time_ns in sorted(late, reverse=True) if known == attempt else ():
                inside = [one.iteration for one in steps if one.begin_ns <= time_ns <= one.end_ns]
                if inside:
                    found.append((rank, lag, inside[0]))
                    break
        return found
