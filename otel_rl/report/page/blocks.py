"""Sections of the report as HTML; every text is escaped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Final

from otel_rl.analysis.summary import buckets
from otel_rl.report.section import Bar, Block, Cell, Line, Paragraph, Severity, Sparkline, Table
from otel_rl.runs.format import printable, shorten

LONGEST: Final = 2_000
"""Characters of a text; a name in a journal may have a million."""
SPARK_POINTS: Final = 64


def safe(text: str) -> str:
    """Make a text literal."""
    return escape(shorten(printable(text), LONGEST))


def html_of(blocks: Iterable[Block]) -> str:
    return "\n".join(map(_block, blocks))


def lines_of(text: str) -> str:
    """Make a text of several lines literal."""
    return escape("\n".join(map(printable, text.split("\n"))))


def _block(block: Block) -> str:
    if isinstance(block, Line):
        return f"<p>{marked(block.text, block.severity)}</p>"
    if isinstance(block, Paragraph):
        label = f"<b>{safe(block.label)}</b> " if block.label else ""
        return f"<p>{label}{' '.join(marked(one.text, one.severity) for one in (*block.first, *block.rest))}</p>"
    if isinstance(block, Table):
        return "\n".join(_table(block))
    return f"<h1>{safe(block.name)} {marked(block.state.text, block.state.severity)}</h1>"


def marked(text: str, severity: Severity) -> str:
    return f'<span class="{severity}">{safe(text)}</span>' if severity else safe(text)


def _table(table: Table) -> Iterator[str]:
    places = [place for place in range(len(table.columns)) if any(row.cells[place] for row in table.rows)]
    columns = [table.columns[place] for place in places]
    yield '<div class="wide"><table><thead><tr>'
    for column in columns:
        yield f'<th class="{column.kind}" scope="col">{safe(column.head)}</th>'
    yield "</tr></thead><tbody>"
    for row in table.rows:
        cells = (f'<td class="{table.columns[place].kind}">{_cell(row.cells[place])}</td>' for place in places)
        yield f'<tr class="{row.severity}">{"".join(cells)}</tr>'
    yield "</tbody></table></div>"
    if table.legend:
        yield f'<p class="note">{safe("; ".join(text for _, text in table.legend))}.</p>'


def _cell(cell: Cell) -> str:
    if isinstance(cell, Bar):
        return "" if cell.share is None else f'<meter value="{min(1.0, max(0.0, cell.share)):.4f}"></meter>'
    if isinstance(cell, Sparkline):
        return _spark(cell.values)
    text, severity = (cell.text, cell.severity) if isinstance(cell, Line) else (cell, "")
    indent = '<span class="inner"></span>' if text.startswith("  ") else ""
    return indent + marked(text.strip(), severity)


def _spark(values: Sequence[float]) -> str:
    """Draw values as a line; a stretch without finite ones is a gap."""
    means = buckets(values, SPARK_POINTS)
    finite = [value for value in means if math.isfinite(value)]
    if not finite:
        return ""
    low, high = min(finite), max(finite)
    span = (high - low) or 1.0
    begun, parts = False, []
    for place, value in enumerate(means):
        if math.isfinite(value):
            parts.append(f"{'L' if begun else 'M'}{place} {15 - 14 * (value - low) / span:.1f}")
        begun = math.isfinite(value)
    return (
        f'<svg class="spark" viewBox="0 0 {max(1, len(means) - 1)} 16" preserveAspectRatio="none" aria-hidden="true">'
        f'<path d="{" ".join(parts)}"/></svg>'
    )
