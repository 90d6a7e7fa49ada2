"""The report in a terminal. Tables fit into its width: names lose their middle, numbers lose nothing."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.containers import Lines
from rich.table import Table as RichTable
from rich.text import Text

from otel_rl.report.data.report import Report
from otel_rl.report.pictures import drawn
from otel_rl.report.screen import PARTS, Part, sections
from otel_rl.report.section import Block, Cell, Column, Line, Paragraph, Picture, Severity, Table
from otel_rl.report.sections.open_now import MOST_OPEN
from otel_rl.runs.format import printable, shorten

HEADING: Final = "bold"
NOTE: Final = "dim"
GOOD: Final = "green"
WARNING: Final = "yellow"
ALARM: Final = "bold red"
STYLES: Final[dict[Severity, str]] = {
    "": "", "note": NOTE, "good": GOOD, "warning": WARNING, "alarm": ALARM, "heading": HEADING,
}  # fmt: skip
PICTURE: Final = "cyan"
GAP: Final = 2
LEAST_NAME: Final = 16
"""A longer name is not made shorter than this while another column can be left out."""
LABEL: Final = 8
"""Cells that the label of a paragraph takes."""
BEFORE_UNIT: Final = re.compile(r"(?<=\d) (?=(?:%|us|ms|s|min|h|B|[KMGT]iB)(?:\W|$))")
"""Where no line is broken."""
GLUE: Final = "\ue000"
"""A character of no meaning that stands for a space there: rich would break a line at any space."""
SHORTEST_NAME: Final = 3
LEAST_PICTURE: Final = 8


def plain_table() -> RichTable:
    """Make a table without lines: the columns' alignment is its frame."""
    return RichTable(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style=HEADING, collapse_padding=True)


def render(report: Report, console: Console, parts: Collection[Part] = PARTS) -> None:
    """Print a report; colours and width are the console's. Paths come in one piece, so that they can be copied."""
    console.print(document(report, console.width, parts), highlight=False)
    if parts:
        console.print()
    for path in (report.path, *(one.path for one in report.pending[:MOST_OPEN])):
        console.print(Text(printable(path), style=NOTE), soft_wrap=True)


def document(report: Report, width: int, parts: Collection[Part] = PARTS) -> RenderableType:
    """Lay a report out for a terminal of ``width`` columns; texts of the journal cannot order that terminal about."""
    found: list[RenderableType] = []
    for _, blocks in sections(report, parts):
        found += [laid_out(blocks, width), Text()]
    return Group(*found[:-1])


def laid_out(blocks: Iterable[Block], width: int) -> Group:
    return Group(*(_block(block, width) for block in blocks))


def _block(block: Block, width: int) -> RenderableType:
    if isinstance(block, Line):
        return _Wrapped(Paragraph("", [block]), width, 0)
    if isinstance(block, Paragraph):
        return _Wrapped(block, width, LABEL)
    if isinstance(block, Table):
        return _table(block, width)
    state = block.state
    title = Text(shorten(f"otel_rl  {printable(block.name)}", max(1, width - cell_len(state.text) - 2)), style=HEADING)
    title.append(" " * max(2, width - title.cell_len - cell_len(state.text)))
    return title.append(state.text, style=STYLES[state.severity])


@dataclass(frozen=True, slots=True)
class _Wrapped:
    """A paragraph in its lines, all but the label indented."""

    paragraph: Paragraph
    width: int
    indent: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        label = Text().append(shorten(printable(self.paragraph.label), max(1, self.indent - 1)), HEADING)
        label.append(" " * (self.indent - label.cell_len))
        for line in self._lines(console):
            line.plain = line.plain.replace(GLUE, " ").rstrip()
            yield label.append_text(line)
            label = Text(" " * self.indent)

    def _lines(self, console: Console) -> Lines:
        first, rest, most = self.paragraph.first, self.paragraph.rest, self.paragraph.most
        lines = Lines()
        for kept in range(len(rest), -1, -1):
            left = len(rest) - kept
            counted = [Line(f"and {left} more: --all", "note")] if left else []
            lines = _sentences([*first, *rest[:kept], *counted]).wrap(console, max(1, self.width - self.indent))
            if len(lines) <= most:
                break
        return lines


def _sentences(lines: Sequence[Line]) -> Text:
    texts = (BEFORE_UNIT.sub(GLUE, printable(one.text)) for one in lines)
    return Text(" ").join(Text(text, style=STYLES[one.severity]) for text, one in zip(texts, lines, strict=True))


@dataclass(slots=True, eq=False)
class _Fitted:
    """A column with its cells, its whole width, and the room that it has; at first the least."""

    column: Column
    cells: list[Cell]
    whole: int
    room: int


def _fitted(column: Column, cells: list[Cell]) -> _Fitted:
    whole = column.most or max(map(cell_len, map(_text, (column.head, *cells))))
    least = {"picture": min(LEAST_PICTURE, whole), "name": min(LEAST_NAME, whole)}.get(column.kind, whole)
    return _Fitted(column, cells, whole, least)


def _text(cell: Cell) -> str:
    return "" if isinstance(cell, Picture) else printable(cell.text if isinstance(cell, Line) else cell)


def _table(table: Table, width: int) -> RenderableType:
    """Lay a table out for a width; leave pictures out if it is too narrow, then the last columns of numbers."""
    while table.narrow is not None and len(_shown(table, width)) < len(_shown(table, sys.maxsize)):
        table = table.narrow
    shown = _shown(table, width)
    _share_out(shown, width)
    made = plain_table()
    for one in shown:
        justify: Literal["right", "left"] = "right" if one.column.kind == "number" else "left"
        fixed = None if one.column.kind == "picture" else one.room
        head = Text(shorten(printable(one.column.head), one.room))
        is_key = one.column.kind == "key"
        made.add_column(head, justify=justify, width=fixed, no_wrap=not is_key, overflow="fold")
    for place, row in enumerate(table.rows):
        made.add_row(*(_cell(one.cells[place], one) for one in shown), style=STYLES[row.severity])
    heads = {"", *(one.column.head for one in shown)}
    legend = "; ".join(text for head, text in table.legend if head in heads)
    return Group(made, Text(f"{legend}.", style=NOTE)) if legend else made


def _cell(cell: Cell, fitted: _Fitted) -> Text:
    if isinstance(cell, Picture):
        return Text(drawn(cell, fitted.room), style=PICTURE)
    text = shorten(_text(cell), fitted.room) if fitted.column.kind == "name" else _text(cell)
    return Text(text, style=STYLES[cell.severity] if isinstance(cell, Line) else "")


def _shown(table: Table, width: int) -> list[_Fitted]:
    fitted = (_fitted(column, [row.cells[place] for row in table.rows]) for place, column in enumerate(table.columns))
    shown = [one for one in fitted if one.whole]
    while _total(shown) > width:
        leaving = [one for one in shown[1:] if one.column.kind in ("number", "picture")]
        if not leaving:
            break
        shown.remove(max(leaving, key=lambda one: (one.column.kind == "picture", shown.index(one))))
    return shown


def _total(columns: Sequence[_Fitted]) -> int:
    return sum(one.room + GAP for one in columns) - GAP


def _share_out(columns: Sequence[_Fitted], width: int) -> None:
    """Divide a width: what is left goes to the names, the shortest first, then to the pictures."""
    names = sorted((one for one in columns if one.column.kind in ("name", "key")), key=lambda one: one.whole)
    for one in reversed(names):  # nothing else is left that could go
        left = width - _total(columns)
        one.room += max(left, SHORTEST_NAME - one.room) if left < 0 else 0
    left = max(0, width - _total(columns))
    for index, one in enumerate(names):
        added = min(left // (len(names) - index), one.whole - one.room)
        one.room += added
        left -= added
    for one in columns:
        if one.column.kind == "picture":
            one.room = min(one.room + left, one.whole)
