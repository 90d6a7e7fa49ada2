"""Pieces of the Markdown that is generated from the vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def section(title: str, text: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a heading, a sentence where there is one, and a table."""
    head = [f"## {title}", "", *([text, ""] if text else [])]
    return "\n".join([*head, table(columns, rows)])


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table."""
    cells = [columns, ["---"] * len(columns), *rows]
    lines = ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells)
    return "\n".join([*lines, ""])


def code(text: str) -> str:
    return f"`{text}`"
