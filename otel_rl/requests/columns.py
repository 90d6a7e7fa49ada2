"""Requests as columns of whole numbers; what cannot be is left out and counted, never guessed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import index, itemgetter
from typing import Any, Final, NamedTuple

from otel_rl.guard import attempt
from otel_rl.requests.queue import UNKNOWN, Request, Row, native

Column = Any
"""A sequence of whole numbers."""

FAILED: Final = frozenset(("abort", "timeout", "error"))
"""Finish reasons of requests that all become spans, within their limit."""
SLACK_NS: Final = 1_000_000
"""A submission may be stamped by another clock than the engine's: up to this it counts as no time, not as a mistake."""
MOST_TOKENS: Final = 1 << 40
LARGEST: Final = 1 << 62

TIMES: Final = ("submitted", "ended", "scheduled", "first_token", "last_token")
COUNTS: Final = ("input_tokens", "output_tokens", "cached_tokens", "preemptions")
WHOLE: Final = (*TIMES, *COUNTS, "turn", "policy_start", "policy_end", "limit")
TYPES: Final = tuple(int if name in WHOLE else bool if name == "streamed" else str for name in Request._fields)
LAYOUT: Final = "".join(
    "q" if name in (*TIMES, *COUNTS) else {int: "i", bool: "b", str: "s"}[kind]
    for name, kind in zip(Request._fields, TYPES, strict=True)
).encode()
"""What the fields of a row should be, and of which of them there are columns, as ``_native.c`` reads it."""


def places(*names: str) -> bytes:
    """Say where these fields are in a row."""
    return bytes(map(Request._fields.index, names))


KIND: Final = places("operation", "engine", "model", "replica", "streamed")
"""What tells the series of requests apart."""
FINISH, ERROR, TURN, _ID = places("finish", "error", "turn", "id")
kind_of: Final = itemgetter(*KIND)


class Numbers(NamedTuple):
    """What follows from one row; times in ns, -1 where a number is not known or not usable."""

    duration: int
    ttft: int
    queue: int
    prefill: int
    decode: int
    tpot: int
    input: int
    output: int
    cached: int
    preemptions: int
    started: int
    """When the engine took the request up (monotonic, ns); 0 where unknown."""
    ended: int
    """Monotonic, ns; 0 where unknown."""


class Derived:
    """What follows from the rows of one kind, by column."""

    __slots__ = ("columns", "problems")

    def __init__(self, columns: Sequence[Column], problems: Mapping[str, int]) -> None:
        """Hold columns.

        Args:
            columns: in the order of ``Numbers``.
            problems: rows by what is wrong with them: a word of docs/requests.md.
        """
        self.columns: Any = Numbers._make(columns)
        """A ``Numbers`` whose fields are the columns."""
        self.problems = problems

    def of(self, place: int) -> list[int]:
        """Give the numbers of one row."""
        return [column[place] for column in self.columns]


class Table:
    """Clean rows, at least one, the places that they belong to, and what is looked at more than once."""

    __slots__ = ("errors", "finishes", "ids", "numbers", "parents", "rows")

    def __init__(self, rows: list[Row], parents: list[Any], numbers: tuple[bytes, ...] | None = None) -> None:
        """Look at rows. Cost: 0.15 us each.

        Args:
            rows: the requests.
            parents: their places.
            numbers: the columns of the rows, where they are known already.
        """
        self.rows = rows
        self.parents = parents
        self.numbers = numbers if numbers is not None else whole_numbers(rows)
        """Times and counts, each column as bytes; None without C, or where a number does not fit into 64 bits."""
        self.ids: list[str] = list(map(itemgetter(_ID), rows))
        self.finishes = count(rows, FINISH)
        """How many ended for which reason."""
        self.errors = count(rows, ERROR)

    def column(self, name: str) -> Column:
        """Give a column of times."""
        if self.numbers is not None:
            return memoryview(self.numbers[TIMES.index(name)]).cast("q")
        return list(map(itemgetter(*places(name)), self.rows))

    def ended_between(self, after: int, until: int) -> list[int]:
        """Say which requests ended after a time, and not after another."""
        ends = self.column("ended")
        if native is not None and self.numbers is not None:
            return [place for place in native.largest(ends.obj, after, len(ends)) if ends[place] <= until]
        return [place for place, ended in enumerate(ends) if after < ended <= until]

    def has_failed(self) -> bool:
        """Whether any request was aborted, ran out of time or failed."""
        return not FAILED.isdisjoint(self.finishes) or any(self.errors)

    def parts(self) -> list[Table]:
        """Part the rows by the labels of their metrics."""
        if are_alike(self.rows):
            return [self]
        parts: dict[Any, list[int]] = {}
        for place, row in enumerate(self.rows):
            parts.setdefault(kind_of(row), []).append(place)
        return [self.only(places) for places in parts.values()]

    def below(self, kinds: dict[Any, Any], kind: Any) -> Table:
        """Give the table of the rows whose places are of one kind, by the place."""
        return self.only([place for place, parent in enumerate(self.parents) if kinds[parent] == kind])

    def only(self, places: list[int]) -> Table:
        """Give the table of some of the rows."""
        return Table([self.rows[place] for place in places], [self.parents[place] for place in places])


def whole_numbers(rows: list[Any]) -> tuple[bytes, ...] | None:
    """Give columns of times and counts where each field of every row is as good as what it should be, else None.

    A time or a count may be of another type that Python takes for a whole number, such as numpy's. Without C there are
    none.
    """
    found: tuple[bytes, ...] | None = None
    if native is not None:
        found = native.columns(rows, Request, LAYOUT)
    return found


def are_alike(rows: list[Row]) -> bool:
    """Whether all count in the same series."""
    if native is not None:
        return bool(native.alike(rows, KIND))
    first = kind_of(rows[0])
    return all(kind_of(row) == first for row in rows)


def count(rows: list[Row], place: int) -> dict[str, int]:
    """Count the rows by the field at a place."""
    counts: dict[str, int] = native.count(rows, place) if native is not None else Counter(map(itemgetter(place), rows))
    return counts


def clean(rows: list[Row], parents: list[Any], problems: Counter[str]) -> Table | None:
    """Give the rows as a table of fields that have the types that they should have; None where no row is left.

    Args:
        rows: what a reader gave, which may be anything.
        parents: the places that they belong to.
        problems: takes what had to be changed: ``no_request``, ``not_a_number``.
    """
    numbers = whole_numbers(rows)
    if numbers is None:
        kept = [(row, parent) for row, parent in zip(rows, parents, strict=True) if _is_row(row)]
        problems["no_request"] += len(rows) - len(kept)
        rows, parents = [cleaned(row, problems) for row, _ in kept], [parent for _, parent in kept]
    return Table(rows, parents, numbers) if rows else None


def _is_row(row: Any) -> bool:
    return type(row) is Request or (type(row) is tuple and len(row) == len(TYPES))


def cleaned(row: Row, problems: Counter[str] | None = None) -> Request:
    """Give a row with the types that it should have; a value that cannot be read is not known.

    Args:
        row: what a reader gave.
        problems: takes what had to be changed; left out where the row is known to be as good as clean.
    """
    if tuple(map(type, row)) == TYPES:  # nothing is compared but types: what is odd may refuse that
        return Request._make(row)
    changed: dict[str, Any] = {}
    is_wrong = False
    for name, kind, value in zip(Request._fields, TYPES, row, strict=True):
        if type(value) is kind:
            continue
        read: Any = whole if kind is int else _text if kind is str else kind
        found = None if value is None else attempt("read", "a value of a request", read, value)
        is_wrong |= found is None and value is not None
        changed[name] = (0 if name in TIMES else UNKNOWN if kind is int else kind()) if found is None else found
    if problems is not None:
        problems["not_a_number"] += is_wrong
    return Request._make(row)._replace(**changed)


def _text(value: Any) -> str:
    return str.__str__(value if isinstance(value, str) else str(value))


def whole(value: Any) -> int | None:
    """Read a whole number of any type; None where it is none."""
    try:
        number = index(value)
    except TypeError:
        if not isinstance(value, float) or not value.is_integer():
            return None
        number = int(value)
    return int(number) if abs(number) < LARGEST else None


def is_failed(row: Row) -> bool:
    """Whether a request was aborted, ran out of time or failed."""
    return row[FINISH] in FAILED or bool(row[ERROR])


def has_error(row: Row) -> bool:
    """Whether a request failed by itself."""
    return row[FINISH] == "error" or bool(row[ERROR])
