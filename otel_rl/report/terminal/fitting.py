"""Tables that fit into a terminal: names lose their middle, numbers lose nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import StyleType
from rich.table import Table
from rich.text import Text

from otel_rl.report.format import count
from otel_rl.report.terminal.style import HEADING, NOTE

GAP: Final = 2
"""Cells between two columns."""
LEAST_NAME: Final = 16
"""A name that is longer is not made shorter than this."""
SHORTEST_NAME: Final = 3
"""Where even that is too long, and no column is left that could go, it is made as short as this."""
LEAST_PICTURE: Final = 8
ELLIPSIS: Final = "…"
MOST_RANKS: Final = 16
"""Ranks that a table lists; JSON has all."""

Draw = Callable[[int], str]
"""Returns a picture of a given width."""


@dataclass
class _Column:
    head: str
    kind: Literal["name", "number", "fact", "picture"]
    most: int = 0
    """Width of a picture at most."""
    style: StyleType = ""
    cells: list[str | Text | Draw] = field(default_factory=list)

    @property
    def whole(self) -> int:
        """The width in which nothing is shortened."""
        if self.kind == "picture":
            return self.most
        return max(map(cell_len, (self.head, *map(str, self.cells))))

    @property
    def least(self) -> int:
        """The width below which the column is left out."""
        if self.kind == "picture":
            return min(LEAST_PICTURE, self.most)
        return min(LEAST_NAME, self.whole) if self.kind == "name" else self.whole

    def drawn(self, width: int) -> int:
        """Return how wide the pictures are that have a width at most."""
        return max(len(cell(width)) for cell in self.cells if callable(cell))

    def cell(self, row: int, width: int) -> Text:
        """Return a cell that fits into a width."""
        cell = self.cells[row]
        if callable(cell):
            return Text(cell(width), style=self.style)
        style = cell.style if isinstance(cell, Text) else self.style
        return Text(shorten(str(cell), width) if self.kind == "name" else str(cell), style=style)


class FittingTable:
    """Rows of names, numbers and pictures without lines.

    Where the terminal is too narrow, names are shortened; then pictures are left out, then the last columns of numbers.
    The first column and those of facts always stay.
    """

    def __init__(self) -> None:
        self._columns: list[_Column] = []
        self._styles: list[StyleType] = []

    def name(self, head: str) -> None:
        """Add a column of texts that may be shortened."""
        self._columns.append(_Column(head, "name"))

    def numbers(self, *heads: str) -> None:
        """Add columns of numbers."""
        self._columns += [_Column(head, "number") for head in heads]

    def fact(self, head: str, style: StyleType = "") -> None:
        """Add a column of texts that are never shortened nor left out."""
        self._columns.append(_Column(head, "fact", style=style))

    def picture(self, most: int, style: StyleType) -> None:
        """Add a column of pictures that are drawn as wide as there is room."""
        self._columns.append(_Column("", "picture", most, style))

    def row(self, *cells: str | Text | Draw, style: StyleType = "") -> None:
        """Add a row; texts are taken literally."""
        for column, cell in zip(self._columns, cells, strict=True):
            column.cells.append(lru_cache(maxsize=1)(cell) if callable(cell) else cell)  # drawn once, then measured
        self._styles.append(style)

    def fits(self, width: int) -> bool:
        """Return whether no column has to be left out."""
        return len(self._shown(width)) == len(self._shown(sys.maxsize))

    def heads(self, width: int) -> list[str]:
        """List the headings of the columns that a width has room for."""
        return [column.head for column in self._shown(width)]

    def _shown(self, width: int) -> list[_Column]:
        shown = [column for column in self._columns if column.whole or column.kind != "fact"]
        while _total(column.least for column in shown) > width:
            leaving = [column for column in shown[1:] if column.kind in ("number", "picture")]
            if not leaving:
                break
            shown.remove(max(leaving, key=lambda column: (column.kind == "picture", shown.index(column))))
        return shown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Lay it out for the width that there is."""
        shown = self._shown(options.max_width)
        table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style=HEADING, collapse_padding=True)
        widths = _widths(shown, options.max_width)
        for column, width in zip(shown, widths, strict=True):
            justify: Literal["right", "left"] = "right" if column.kind == "number" else "left"
            head = Text(shorten(column.head, width))
            table.add_column(head, justify=justify, width=width, no_wrap=True)
        for row, style in enumerate(self._styles):
            cells = (column.cell(row, width) for column, width in zip(shown, widths, strict=True))
            table.add_row(*cells, style=style)
        yield table


def _total(widths: Iterable[int]) -> int:
    return sum(width + GAP for width in widths) - GAP


def _widths(columns: Sequence[_Column], width: int) -> list[int]:
    """Divide a width: what is left goes to the names, the shortest first, then to the pictures."""
    widths = [column.least for column in columns]
    left = width - _total(widths)
    names = [place for place, column in enumerate(columns) if column.kind == "name"]
    names.sort(key=lambda place: columns[place].whole)
    for place in reversed(names):  # nothing else is left that could go
        widths[place] += max(left, SHORTEST_NAME - widths[place]) if left < 0 else 0
        left = width - _total(widths)
    left = max(0, left)
    for index, place in enumerate(names):
        added = min(left // (len(names) - index), columns[place].whole - widths[place])
        widths[place] += added
        left -= added
    for place, column in enumerate(columns):
        if column.kind == "picture":
            widths[place] = column.drawn(min(widths[place] + left, column.most))
    return widths


def shorten(text: str, width: int) -> str:
    """Cut a text in its middle to a number of cells: of many long names the end tells them apart."""
    if cell_len(text) <= width:
        return text
    tail_width = (width - 1) // 2
    head, tail = text[: width - 1 - tail_width], text[len(text) - tail_width :]
    while cell_len(head) > width - 1 - tail_width:
        head = head[:-1]
    while cell_len(tail) > tail_width:
        tail = tail[1:]
    return f"{head}{ELLIPSIS}{tail}"


def more(number: int, what: str) -> Text:
    """Return the line that counts the rows that a table leaves out."""
    return Text(f"and {count(number)} more{what}", style=NOTE)
