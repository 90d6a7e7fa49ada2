"""FLOPs and MFU of the terminal verdict, and the lines of the correctness ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from otel_rl.report.data.computed import SCOPES, RankFlops
from otel_rl.report.data.report import Report
from otel_rl.report.format import listed, percent, plural
from otel_rl.report.sections.model import by_fault
from otel_rl.report.terminal.fitting import FittingTable, more
from otel_rl.report.terminal.style import NOTE, WARNING, rank_name

UNITS: Final = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))
MOST_ROWS: Final = 32
"""Ranks that are shown, the slowest."""
MOST_LINES: Final = 24
"""Lines of the ledger; a line holds every step that has the same fault on the same ranks."""


def flops_table(report: Report) -> RenderableType | None:
    """Show FLOP/s and MFU of each rank and scope, median over steps; None where nothing is known of a model."""
    rows, notes = report.flops.ranks, report.flops.notes
    if not rows and not notes:
        return None
    parts: list[RenderableType] = []
    if rows:
        scopes = [scope for scope in SCOPES if any(row.scope == scope for row in rows)]
        table = FittingTable()
        table.name("FLOP/s")
        table.numbers(*scopes)
        by_rank: dict[tuple[str, int], dict[str, RankFlops]] = {}
        for row in rows:
            by_rank.setdefault((row.role, row.rank), {})[row.scope] = row
        slowest = sorted(by_rank, key=lambda rank: min(row.per_second for row in by_rank[rank].values()))[:MOST_ROWS]
        for rank in sorted(slowest):
            table.row(rank_name(report, *rank), *(_cell(by_rank[rank].get(scope)) for scope in scopes))
        left = len(by_rank) - len(slowest)
        parts += [table, *([more(left, ", which --json has")] if left else []), Text(_note(rows), style=NOTE)]
    return Group(*parts, *(Text(note[:1].upper() + note[1:] + ".", style=NOTE) for note in notes))


def _cell(row: RankFlops | None) -> str:
    if row is None:
        return "-"
    return rate(row.per_second) + (f"  MFU {percent(row.mfu)}" if row.mfu is not None else "")


def rate(per_second: float) -> str:
    """Write operations per second: ``412 T``."""
    scale, unit = next((one for one in UNITS if per_second >= one[0]), (1.0, ""))
    return f"{per_second / scale:.3g} {unit}".rstrip()


def _note(rows: Sequence[RankFlops]) -> str:
    """Say by what formula, against what peak, by whose clock."""
    peaks = dict.fromkeys((row.peak, row.peak_source) for row in rows if row.peak is not None)
    facts = [f"Of one device by {rows[0].formula.capitalize()}'s formula, padding excluded, median over steps"]
    facts += [f"peak {rate(peak or 0)}FLOP/s ({source})" for peak, source in peaks]
    text = f"{'; '.join(facts)}."
    if any(row.is_host_clock for row in rows):
        text += " Times of the host, so of launches: too high where the device lags."
    return text


def ledger_lines(report: Report) -> Text | None:
    """Name every mismatch; None where there is none."""
    lines = []
    for (fault, boundary, ranks, of_ranks), steps in by_fault(report.ledger).items():
        who = listed([rank_name(report, *one) for one in ranks]) + (f" of {of_ranks} ranks" if of_ranks > 1 else "")
        lines.append(f"{fault}, {boundary}: {who}, {_steps(steps)}")
    shown = lines[:MOST_LINES]
    if len(lines) > len(shown):
        shown.append(f"and {plural(len(lines) - len(shown), 'more kind')}: otel-rl report RUN --json lists them")
    return Text("\n".join(f"correctness: {line}" for line in shown), style=WARNING) if lines else None


def _steps(steps: Sequence[int]) -> str:
    """Write numbers of steps as ranges."""
    ranges: list[list[int]] = []
    for step in sorted(set(steps)):
        if ranges and step == ranges[-1][1] + 1:
            ranges[-1][1] = step
        else:
            ranges.append([step, step])
    names = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
    return f"step{'s' if len(set(steps)) > 1 else ''} {', '.join(names)}"
