"""What the tables of the terminal verdict share: colours, the frame of a table, how a rank is called."""

from __future__ import annotations

from typing import Final

from rich.console import RenderableType
from rich.style import StyleType
from rich.table import Table
from rich.text import Text

from otel_rl.report.data.report import Report

HEADING: Final = "bold"
NOTE: Final = "dim"
GOOD: Final = "green"
WARNING: Final = "yellow"
BAR: Final = "cyan"


class PlainTable(Table):
    """A table whose cells are what they are: a name like ``[/x]`` is no markup."""

    def add_row(
        self, *renderables: RenderableType | None, style: StyleType | None = None, end_section: bool = False
    ) -> None:
        """Append a row; its texts are taken literally."""
        cells = (Text(cell) if isinstance(cell, str) else cell for cell in renderables)
        super().add_row(*cells, style=style, end_section=end_section)


def plain_table() -> PlainTable:
    """Make a table without lines: the columns' alignment is its frame."""
    return PlainTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=HEADING, collapse_padding=True)


def rank_name(report: Report, role: str, rank: int) -> str:
    """Call a rank by its number, and by its role where there are several."""
    return f"rank {rank}" if len({one.role for one in report.ranks}) < 2 else f"{role} {rank}"


def attempt_name(report: Report, attempt: str) -> str:
    """Say of which attempt something is, where there are several: by its number, from 1."""
    known = [one.id for one in report.attempts]
    return f", attempt {known.index(attempt) + 1}" if len(known) > 1 and attempt in known else ""
