"""FLOP/s and MFU of each rank."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import isfinite
from statistics import median
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.journal.read import LogView, PointView
from otel_rl.records import Attributes
from otel_rl.report.data.details import SCOPES, Flops, RankFlops, Scope
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import Report
from otel_rl.report.read.span_attributes import rank_of
from otel_rl.report.section import Block, Section, Table, more, notes, rank_name
from otel_rl.runs.format import percent
from otel_rl.runs.spans import number, text

UNITS: Final = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))
MOST_ROWS: Final = 32


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

    def rows(self, notes: Iterable[LogView]) -> Flops:
        rows = [values.row(*key) for key, values in self._values.items() if values.rates]
        rows.sort(key=lambda row: (row.role, row.rank, SCOPES.index(row.scope)))
        return Flops(ranks=rows, notes=list(dict.fromkeys(note.body for note in notes)))


def _blocks(report: Report) -> list[Block]:
    rows = report.flops.ranks
    blocks: list[Block] = []
    if rows:
        scopes = [scope for scope in SCOPES if any(row.scope == scope for row in rows)]
        table = Table.of("FLOP/s", *scopes)
        by_rank: dict[Rank, dict[str, RankFlops]] = {}
        for row in rows:
            by_rank.setdefault(row.who, {})[row.scope] = row
        slowest = sorted(by_rank, key=lambda rank: min(row.per_second for row in by_rank[rank].values()))[:MOST_ROWS]
        for rank in sorted(slowest):
            cells = (_cell(by_rank[rank].get(scope)) for scope in scopes)
            table.add(rank_name(report, rank), *cells)
        blocks = [table, *more(len(by_rank) - len(slowest)), *notes(_footnote(rows))]
    return blocks + notes(*(f"{note[:1].upper()}{note[1:]}." for note in report.flops.notes))


def _cell(row: RankFlops | None) -> str:
    if row is None:
        return "-"
    return rate(row.per_second) + (f"  MFU {percent(row.mfu)}" if row.mfu is not None else "")


def rate(per_second: float) -> str:
    scale, unit = next((one for one in UNITS if per_second >= one[0]), (1.0, ""))
    return f"{per_second / scale:.3g} {unit}".rstrip()


def _footnote(rows: Sequence[RankFlops]) -> str:
    peaks = dict.fromkeys((row.peak, row.peak_source) for row in rows if row.peak is not None)
    facts = [f"Of one device by {rows[0].formula.capitalize()}'s formula, padding excluded, median over steps"]
    facts += [f"peak {rate(peak or 0)}FLOP/s ({source})" for peak, source in peaks]
    text = f"{'; '.join(facts)}."
    if any(row.is_host_clock for row in rows):
        text += " Times of the host, so of launches: too high where the device lags."
    return text


FLOPS: Final = Section(
    title="FLOP/s",
    data={"flops": lambda source: source.points.flops.rows(source.run.logs(v.FLOPS_NOTE))},
    blocks=_blocks,
)
