"""Requests as columns of whole numbers; what cannot be is left out and counted, never guessed."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, index, itemgetter
from typing import Any, Final, NamedTuple

from otel_rl.guard import attempt
from otel_rl.requests import UNKNOWN, Request

Column = Any
"""A list of whole numbers or a numpy array of them."""

FAILED: Final = frozenset(("abort", "timeout", "error"))
"""Finish reasons of requests that all become spans, within their limit."""
SLACK_NS: Final = 1_000_000
"""A submission may be stamped by another clock than the engine's: up to this it counts as no time, not as a mistake."""
MOST_TOKENS: Final = 1 << 40
LARGEST: Final = 1 << 62

KIND: Final = itemgetter(*map(Request._fields.index, ("operation", "engine", "model", "replica", "streamed")))
"""What tells the series of requests apart."""
TIMES: Final = ("submitted", "ended", "scheduled", "first_token", "last_token")
COUNTS: Final = ("input_tokens", "output_tokens", "cached_tokens", "preemptions")
WHOLE: Final = (*TIMES, *COUNTS, "turn", "policy_start", "policy_end", "limit")
FEW: Final = 48
"""Below this a look at every value costs less than one at every column."""
TYPES: Final = tuple(int if name in WHOLE else bool if name == "streamed" else str for name in Request._fields)


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
    ended: int


_COLUMNS: Final = attrgetter(*Numbers._fields)
_texts: Final = attrgetter(*(name for name, kind in zip(Request._fields, TYPES, strict=True) if kind is str))
Arrays = Mapping[str, "array[int]"]
NONE: Final[Arrays] = {}


@dataclass(slots=True)
class Derived:
    """What follows from the rows of one kind, by column; times in ns, -1 where a number is not known or not usable."""

    duration: Column
    ttft: Column
    queue: Column
    prefill: Column
    decode: Column
    tpot: Column
    input: Column
    output: Column
    cached: Column
    preemptions: Column
    started: Column
    """When the engine took the request up (monotonic, ns); 0 where unknown."""
    ended: Column
    """Monotonic, ns; 0 where unknown."""
    rows: Sequence[tuple[int, ...]] = field(default=(), init=False)
    """The same by row, where it was made that way."""
    problems: dict[str, int] = field(default_factory=dict, init=False)
    """Rows by what is wrong with them: a word of docs/requests.md."""

    def of(self, place: int) -> Numbers:
        """Give the numbers of one row, as Python's own."""
        return Numbers._make(self.rows[place] if self.rows else [int(column[place]) for column in _COLUMNS(self)])


class Table:
    """Rows and, once for all that look at them, their columns."""

    __slots__ = ("arrays", "columns", "finishes", "parents", "rows")

    def __init__(self, rows: list[Request], parents: list[Any], columns: Any = None, arrays: Arrays = NONE) -> None:
        """Turn clean rows, at least one, and the places that they belong to, into columns. Cost: 0.2 us a row.

        Args:
            rows: the requests.
            parents: their places.
            columns: those of the rows, where they are known already.
            arrays: likewise.
        """
        self.rows = rows
        self.parents = parents
        self.columns: Any = columns or Request._make(zip(*rows, strict=True))
        """A ``Request`` whose fields are the columns."""
        self.arrays = arrays
        """Columns of numbers of 64 bits by their name, where they have been made."""
        self.finishes = Counter(self.columns.finish)
        """How many ended for which reason."""

    def has_failed(self) -> bool:
        """Whether any request was aborted, ran out of time or failed."""
        return any(self.columns.error) or not FAILED.isdisjoint(self.finishes)

    def parts(self) -> list[Table]:
        """Part the rows by the labels of their metrics."""
        for column in KIND(self.columns):
            if not is_constant(column):
                break
        else:
            return [self]
        parts: dict[Any, list[int]] = {}
        for place, row in enumerate(self.rows):
            parts.setdefault(KIND(row), []).append(place)
        return [self.only(places) for places in parts.values()]

    def below(self, kinds: dict[Any, Any], kind: Any) -> Table:
        """Give the table of the rows whose places are of one kind, by the place."""
        return self.only([place for place, parent in enumerate(self.parents) if kinds[parent] == kind])

    def only(self, places: list[int]) -> Table:
        """Give the table of some of the rows."""
        return Table([self.rows[place] for place in places], [self.parents[place] for place in places])


def is_constant(column: Sequence[Any]) -> bool:
    """Whether all values of a column are equal. Cost: 6 ns each where they are, nothing where the ends differ."""
    first = column[0]
    return bool(column[-1] == first and column.count(first) == len(column))


def clean(rows: list[Request], parents: list[Any], problems: Counter[str]) -> Table | None:
    """Give the rows as a table of fields that have the types that they should have; None where no row is left.

    Args:
        rows: what a reader gave, which may be anything.
        parents: the places that they belong to.
        problems: takes what had to be changed: ``no_request``, ``not_a_number``.
    """
    if set(map(type, rows)) - {Request}:
        kept = [(row, parent) for row, parent in zip(rows, parents, strict=True) if type(row) is Request]
        problems["no_request"] += len(rows) - len(kept)
        rows, parents = [row for row, _ in kept], [parent for _, parent in kept]
    if not rows:
        return None
    if len(rows) >= FEW:
        columns = Request._make(zip(*rows, strict=True))
        arrays = attempt("look at", "requests", _arrays, columns)
        if arrays:
            return Table(rows, parents, columns, arrays)
    if not all(tuple(map(type, row)) == TYPES for row in rows):  # nothing is compared: what is odd may refuse that
        rows = [cleaned(row, problems) for row in rows]
    return Table(rows, parents)


def _arrays(columns: Any) -> Arrays:
    """Make arrays of the whole numbers, where each field of every row is as good as what it should be; else none.

    A number may be of another type that Python takes for a whole number, such as numpy's; a text of a subclass of
    Python's. Cost: 0.25 us a row, a third of a look at the type of every value.
    """
    try:
        arrays = {name: _array(getattr(columns, name)) for name in WHOLE}
        bytes(columns.streamed)
        for column in _texts(columns):
            "".join(column)
    except (TypeError, ValueError, OverflowError):
        return NONE
    return arrays


def _array(column: tuple[int, ...]) -> array[int]:
    first = column[0]
    if type(first) is int and is_constant(column):  # as of a batch submitted at once, or what is not known of any
        return array("q", (first,)) * len(column)
    return array("q", column)


def cleaned(row: Request, problems: Counter[str]) -> Request:
    """Give a row with the types that it should have; a value that cannot be read is not known."""
    changed: dict[str, Any] = {}
    is_wrong = False
    for name, kind, value in zip(Request._fields, TYPES, row, strict=True):
        if type(value) is kind:
            continue
        read: Any = whole if kind is int else _text if kind is str else kind
        found = None if value is None else attempt("read", "a value of a request", read, value)
        is_wrong |= found is None and value is not None
        changed[name] = (0 if name in TIMES else UNKNOWN if kind is int else kind()) if found is None else found
    problems["not_a_number"] += is_wrong
    return row._replace(**changed)


def _text(value: Any) -> str:
    return str.__str__(value) if isinstance(value, str) else str(value)


def whole(value: Any) -> int | None:
    """Read a whole number of any type; None where it is none."""
    try:
        number = index(value)
    except TypeError:
        if not isinstance(value, float) or not value.is_integer():
            return None
        number = int(value)
    return int(number) if abs(number) < LARGEST else None


def is_failed(row: Request) -> bool:
    """Whether a request was aborted, ran out of time or failed."""
    return row.finish in FAILED or bool(row.error)


def texts(ids: Sequence[str]) -> list[bytes]:
    """Encode ids for hashing."""
    try:
        return list(map(str.encode, ids))
    except UnicodeEncodeError:  # half a character
        return [one.encode("utf-8", "surrogatepass") for one in ids]
