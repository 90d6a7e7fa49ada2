"""The report as Markdown, for issues and chats: tables as GitHub has them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from otel_rl.report.data.report import Report
from otel_rl.report.pictures import drawn
from otel_rl.report.screen import PARTS, Part, sections
from otel_rl.report.section import Block, Cell, Line, Paragraph, Picture, Severity, Table, Title
from otel_rl.runs.format import printable

SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>|~#&$])")
"""Characters with which a name could change the layout."""
LIST: Final = re.compile(r"^([-+=](?=[-+=\s])|\d+[.)](?=\s))")
"""Beginning of a line that would make it an item of a list, a heading or a rule."""
PICTURE_WIDTH: Final = 16


def to_markdown(report: Report, parts: Collection[Part] = PARTS) -> str:
    """Write a report as Markdown without colours; names from the journal are escaped."""
    found: list[str] = []
    for title, blocks in sections(report, parts):
        found += [f"### {title}"] if title else []
        found += [_block(block) for block in blocks]
    return "\n\n".join((*found, escape(report.path))) + "\n"


def blocks_to_markdown(blocks: Iterable[Block]) -> str:
    """Write blocks as Markdown, as those of a report are written."""
    return "\n\n".join(map(_block, blocks)) + "\n"


def escape(text: str) -> str:
    """Make a text literal, on one line."""
    literal = SPECIAL.sub(r"\\\1", " ".join(printable(text).split()))
    return LIST.sub(lambda found: f"{found[0][:-1]}\\{found[0][-1]}", literal)


def _block(block: Block) -> str:
    if isinstance(block, Title):
        return f"## otel\\_rl: {escape(block.name)} ({block.state.text})"
    if isinstance(block, Line):
        return _marked(block.text, block.severity)
    if isinstance(block, Paragraph):
        label = f"**{escape(block.label)}** " if block.label else ""
        return label + " ".join(_marked(one.text, one.severity) for one in (*block.first, *block.rest))
    return "\n".join(_table(block))


def _marked(text: str, severity: Severity) -> str:
    return f"**{escape(text)}**" if severity in ("heading", "warning", "alarm") and text.strip() else escape(text)


def _table(table: Table) -> Iterator[str]:
    places = [place for place in range(len(table.columns)) if any(row.cells[place] for row in table.rows)]
    columns = [table.columns[place] for place in places]
    yield f"| {' | '.join(escape(column.head) for column in columns)} |"
    yield f"|{'|'.join(' ---: ' if column.kind == 'number' else ' --- ' for column in columns)}|"
    for row in table.rows:
        yield f"| {' | '.join(_cell(row.cells[place]) for place in places)} |"
    if table.legend:
        yield f"\n{escape('; '.join(text for _, text in table.legend))}."


def _cell(cell: Cell) -> str:
    if isinstance(cell, Picture):
        return drawn(cell, PICTURE_WIDTH)
    text, severity = (cell.text, cell.severity) if isinstance(cell, Line) else (cell, "")
    indent = "&emsp;" if text.startswith("  ") else ""
    return indent + _marked(text, severity)
