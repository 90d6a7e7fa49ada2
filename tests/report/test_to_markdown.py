"""The report as Markdown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from otel_rl import vocabulary as v
from otel_rl.journal.read import open_run
from otel_rl.report.build import build_report
from otel_rl.report.data.report import Report
from otel_rl.report.screen import PARTS, sections
from otel_rl.report.section import Bar, Line, Paragraph, Sparkline, Table
from otel_rl.report.to_markdown import escape, to_markdown
from tests.made_runs import BEGIN_NS, Plan, write_run

ODD = ["a|b", "`code` *bold* _x_", "<b>&amp;[x](y)", "# head", "- item", "1. item", "a\nb\\", "$x$ ~y~ {z}", "---"]


def parse(text: str) -> list[Token]:
    """Parse it as GitHub does."""
    return MarkdownIt("commonmark").enable("table").parse(text)


def literal(token: Token) -> str:
    """Return the text that a reader sees; fail if anything but text and bold is in it."""
    kinds = {child.type for child in token.children or []}
    assert kinds <= {"text", "strong_open", "strong_close", "text_special"}, token.content
    return "".join(child.content for child in token.children or [])


@pytest.fixture
def report(tmp_path: Path) -> Report:
    """Make the report of a run with a slow rank, whose device says its memory."""
    plan = Plan(slow_rank=1, nan_loss_step=3, dropped=1234, device_memory=True, killed_in=v.BACKWARD)
    return build_report(open_run(write_run(tmp_path, plan)), BEGIN_NS + 60_000_000_000)


def test_it_has_every_line_and_cell_of_the_sections(report: Report) -> None:
    """In their order, with headings; a picture is the one thing that differs."""
    inline = [literal(token) for token in parse(to_markdown(report)) if token.type == "inline"]
    blocks = [block for _, blocks in sections(report, PARTS) for block in blocks]
    lines = [" ".join(block.text.split()) for block in blocks if isinstance(block, Line)]
    rows = [row.cells for block in blocks if isinstance(block, Table) for row in block.rows]
    cells = [
        cell.text if isinstance(cell, Line) else cell
        for row in rows
        for cell in row
        if not isinstance(cell, Bar | Sparkline)
    ]
    assert [] == [line for line in lines if line and line not in inline]
    assert [] == [cell for cell in map(str, cells) if " ".join(cell.split()) not in [one.strip() for one in inline]]
    paragraphs = [block for block in blocks if isinstance(block, Paragraph)]
    said = [" ".join([one.label, *(line.text for line in (*one.first, *one.rest))]).strip() for one in paragraphs]
    assert [] == [text for text in said if " ".join(text.split()) not in inline]
    assert {title for title, _ in sections(report, PARTS) if title} <= set(inline)


@pytest.mark.parametrize("name", ODD)
def test_any_name_is_shown_literally(report: Report, name: str) -> None:
    """As a stage, as a run and as text: it neither ends a cell nor means anything."""
    stages = [replace(report.stages[0], stage=name), *report.stages[1:]]
    tokens = parse(to_markdown(replace(report, run=name, stages=stages, system=name, path=name)))
    inline = [literal(token).strip() for token in tokens if token.type == "inline"]
    shown = " ".join(name.replace("\n", "\ufffd").split())
    title = f"otel_rl: {shown} (killed, at least "
    assert (2, title, shown) == (inline.count(shown) - 1, inline[0][: len(title)], inline[-1])  # also without its `rl.`
    tables = [token for token in tokens if token.type == "table_open"]
    shown = [block for _, blocks in sections(report, PARTS) for block in blocks if isinstance(block, Table)]
    assert len(shown) == len(tables)


def test_a_number_is_not_escaped() -> None:
    """Only what would begin a list."""
    assert ["41.0 ms", "-", "1\\. item", "\\- item"] == [escape(text) for text in ("41.0 ms", "-", "1. item", "- item")]
