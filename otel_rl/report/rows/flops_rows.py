"""FLOP/s and MFU of each rank, from the points of its metrics."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import isfinite
from statistics import median
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.journal.read import PointView
from otel_rl.records import Attributes
from otel_rl.report.data.details import SCOPES, Flops, RankFlops, Scope
from otel_rl.report.data.ranks import Rank
from otel_rl.report.read.span_attributes import rank_of
from otel_rl.runs.spans import number, text


@dataclass(slots=True)
class _Values:
    """The points of one rank and scope."""

    rates: array[float] = field(default_factory=lambda: array("d"))
    ratios: array[float] = field(default_factory=lambda: array("d"))
    last: Attributes = field(default_factory=dict)
    """Attributes of the last ratio; of the last rate if there is none."""
    is_host_clock: bool = False

    def row(self, rank: Rank, scope: Scope) -> RankFlops:
        return RankFlops(
            role=rank.role,
            rank=rank.rank,
            scope=scope,
            steps=len(self.rates),
            per_second=median(self.rates),
            mfu=median(self.ratios) if self.ratios else None,
            peak=number(self.last, v.FLOPS_PEAK),
            peak_source=text(self.last, v.FLOPS_PEAK_SOURCE),
            formula=text(self.last, v.FLOPS_FORMULA),
            is_host_clock=self.is_host_clock,
        )


class FlopsPoints:
    """The points of FLOP/s and MFU: 8 bytes each."""

    NAMES: Final = (v.FLOPS_RATE, v.MFU)

    def __init__(self) -> None:
        self._values: defaultdict[tuple[Rank, Scope], _Values] = defaultdict(_Values)

    def add(self, point: PointView) -> None:
        """Add a point of ``NAMES``; what a user recorded under these names has no scope."""
        scope = next((one for one in SCOPES if one == text(point.attributes, v.FLOPS_SCOPE)), None)
        if scope is None or not isfinite(point.value):
            return
        found = self._values[rank_of(point.resource), scope]
        if point.name == v.MFU or not found.ratios:
            found.last = point.attributes
        if point.name == v.MFU:
            found.ratios.append(point.value)
        else:
            found.rates.append(point.value)
            found.is_host_clock |= point.attributes.get(v.CLOCK) == "host"

    def rows(self, notes: Iterable[str]) -> Flops:
        rows = [values.row(*key) for key, values in self._values.items() if values.rates]
        rows.sort(key=lambda row: (row.role, row.rank, SCOPES.index(row.scope)))
        return Flops(ranks=rows, notes=list(notes))
