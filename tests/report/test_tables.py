"""Tables of every width."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from otel_rl.report.section import Bar, Column, Line, Table
from otel_rl.report.terminal import laid_out
from otel_rl.runs.format import shorten


def table(*names: str) -> Table:
    """Make a table of everything."""
    numbers = map(Column, ("share", "median", "total"))
    made = Table([Column("stage", "name"), Column("", "picture", 10), *numbers, Column("slowest", "fact")])
    for name in names:
        made.add(name, Bar(1.0), "100 %", "99 h 59 min", Line("1,234 d", "warning"), "[/x] 1")
    return made


def shown(made: Table, width: int) -> list[str]:
    """Render a table as plain text."""
    out = io.StringIO()
    Console(file=out, width=width).print(laid_out([made], width))
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (120, "reward_of_the_correct_answer  ██████████  100 %  99 h 59 min  1,234 d  [/x] 1"),
        (70, "reward_of_t…ect_answer  ████████  100 %  99 h 59 min  1,234 d  [/x] 1"),
        (62, "reward_of_th…rect_answer  100 %  99 h 59 min  1,234 d  [/x] 1"),
        (40, "reward_of_th…rect_answer  100 %  [/x] 1"),
        (20, "rewar…nswer  [/x] 1"),
    ],
)
def test_what_does_not_fit(width: int, expected: str) -> None:
    """Names lose their middle, pictures go, then the last numbers; nothing else is cut."""
    lines = shown(table("reward_of_the_correct_answer"), width)
    assert (2, expected) == (len(lines), lines[1])


@pytest.mark.parametrize(
    "name", ["x" * 72, "報酬関数" * 18, "\N{PARTY POPPER}" * 40, "e\N{COMBINING ACUTE ACCENT}" * 99]
)
@pytest.mark.parametrize("width", range(60, 121, 7))
def test_wide_names(name: str, width: int) -> None:
    """A character may take two cells, or none: the numbers stand in their columns all the same."""
    head, row = shown(table(name), width)
    assert width >= cell_len(row)
    assert "…" in row
    assert row.endswith("  100 %  99 h 59 min  1,234 d  [/x] 1")
    assert cell_len(head.partition("share")[0]) == cell_len(row.partition("100 %")[0])


def test_long_names_lose_their_middle() -> None:
    """Their end tells them apart."""
    assert ["layer", "la…2", "l…2"] == [shorten("layer", 5), shorten("layer.2", 4), shorten("layer.2", 3)]
    assert ["日…本", "\N{PARTY POPPER}…"] == [shorten("日本日本", 5), shorten("\N{PARTY POPPER}" * 4, 4)]


def test_what_is_said_below_a_table_is_about_its_columns() -> None:
    """A column that is left out takes its note with it."""
    made = table("reward")
    made.legend = [("", "2 left out"), ("share", "share: of all"), ("total", "total: of each")]
    lines = {width: shown(made, width)[2] for width in (80, 30)}
    assert {80: "2 left out; share: of all; total: of each.", 30: "2 left out; share: of all."} == lines


def test_a_table_that_is_too_wide_is_replaced() -> None:
    """By the widest one that has room."""
    made = table("reward")
    made.narrow = Table.of("short", "number")
    made.narrow.add("reward", "1")
    assert ["stage", "short"] == [shown(made, width)[0].split()[0] for width in (80, 40)]
