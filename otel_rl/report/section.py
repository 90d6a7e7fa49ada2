"""What a section of the report is: blocks that a renderer lays out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from otel_rl.runs.format import count
from otel_rl.runs.role_words import role_in_words

if TYPE_CHECKING:
    from otel_rl.report.data.details import OpenStageRow
    from otel_rl.report.data.ranks import OfRank, Rank
    from otel_rl.report.data.report import Report

Severity = Literal["", "note", "good", "warning", "alarm", "heading"]
T = TypeVar("T")
MOST_RANKS: Final = 16


@dataclass(frozen=True, slots=True)
class Line:
    """A paragraph, or a cell that differs from its row."""

    text: str
    severity: Severity = ""


@dataclass(frozen=True, slots=True)
class Title:
    """The name of a run, and its state."""

    name: str
    state: Line


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Sentences after a label, indented below it."""

    label: str
    first: Sequence[Line]
    rest: Sequence[Line] = ()
    """As many of these as fit into ``most`` lines; the others are counted."""
    most: int = 4


@dataclass(frozen=True, slots=True)
class Bar:
    """A share from 0 to 1, as a bar that is as wide as there is room; an empty one for None."""

    share: float | None


@dataclass(frozen=True, slots=True)
class Sparkline:
    """Values over the steps, as a line that is as wide as there is room; NaN is a gap."""

    values: Sequence[float]


Picture = Bar | Sparkline
Cell = str | Line | Picture


@dataclass(frozen=True, slots=True)
class Column:
    """A column: names may be shortened, numbers and pictures left out, facts neither.

    Keys, which only their whole text tells apart, are wrapped once nothing is left to leave out.
    """

    head: str
    kind: Literal["name", "key", "number", "fact", "picture"] = "number"
    most: int = 0


@dataclass(frozen=True, slots=True)
class TableRow:
    """The cells of a row, and its severity."""

    cells: Sequence[Cell]
    severity: Severity


@dataclass(slots=True)
class Table:
    """Rows below headings."""

    columns: list[Column]
    rows: list[TableRow] = field(default_factory=list)
    legend: list[tuple[str, str]] = field(default_factory=list)
    """Notes that are joined below the table, each with the heading without which it is left out; empty for none."""
    narrow: Table | None = None
    """The table that replaces this one if there is no room for all columns."""

    @classmethod
    def of(cls, name: str, *numbers: str) -> Table:
        return cls([Column(name, "name"), *map(Column, numbers)])

    def add(self, *cells: Cell, severity: Severity = "") -> None:
        self.rows.append(TableRow(cells, severity))


Block = Title | Line | Paragraph | Table


@dataclass(frozen=True, kw_only=True)
class Section:
    """One part of the report."""

    title: str = ""
    name: str = ""
    """Name of a section without a title."""
    blocks: Callable[[Report], list[Block]] = lambda _: []
    """What it shows of a report; an empty list leaves the section out."""


def cell(value: float | None, write: Callable[[float], str]) -> str:
    return "-" if value is None else write(value)


def notes(*texts: str) -> list[Block]:
    return [Line(text, "note") for text in texts if text]


def by_rank(ranks: list[Rank], make: Callable[[list[Rank]], Table]) -> Table:
    """Make a table with a column for each rank; without ranks if these are too many or do not fit."""
    short = make([])
    table = make(ranks) if len(ranks) <= MOST_RANKS else short
    table.narrow = short if table is not short else None
    return table


def foremost(rows: Sequence[T], key: Callable[[T], Any], most: int = MOST_RANKS) -> list[T]:
    """Choose the rows with the lowest keys; they stay in their order."""
    chosen = sorted(range(len(rows)), key=lambda index: key(rows[index]))[:most]
    return [rows[index] for index in sorted(chosen)]


def more(left: int, what: str = ", which --json has") -> list[Block]:
    """Return the line that counts the rows that a table leaves out; none if it has all."""
    return notes(f"and {count(left)} more{what}") if left > 0 else []


def rank_name(report: Report, of: Rank | OfRank | OpenStageRow) -> str:
    """Return the number of a rank, after its role if there are several roles, or it is no rank."""
    role = "rank" if {one.role for one in report.ranks} <= {of.role} else role_in_words(of.role)
    return f"{role} {of.rank}"


def attempt_name(report: Report, attempt: str) -> str:
    """Return the number of an attempt, from 1, to be appended; empty if there is only one."""
    known = [one.id for one in report.attempts]
    return f", attempt {known.index(attempt) + 1}" if len(known) > 1 and attempt in known else ""
