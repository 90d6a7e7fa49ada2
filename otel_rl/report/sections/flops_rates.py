"""FLOP/s and MFU of each rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from otel_rl.report.data.details import SCOPES, RankFlops
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import Report
from otel_rl.report.section import Block, Section, Table, more, notes, rank_name
from otel_rl.runs.format import percent

UNITS: Final = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))
MOST_ROWS: Final = 32


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
    blocks=_blocks,
)
