"""The arithmetic of many requests in C, as ``bulk_plain`` defines it: the same numbers to the last bit.

A column is a view of bytes that hold numbers of 64 bits.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

from otel_rl.requests import bulk_plain
from otel_rl.requests.bulk_plain import PROBLEMS, Bins, Finished
from otel_rl.requests.columns import MOST_TOKENS, SLACK_NS, Column, Derived, Table, is_failed
from otel_rl.requests.queue import native as _found

_native: Any = _found
LOW_BITS: Final = 20
"""That are summed apart in C, so that no sum leaves 64 bits."""


def derive(table: Table, begun: int, now: int) -> Derived:
    """Derive the times of each request and judge its numbers; see ``bulk_plain.derive``."""
    if table.numbers is None:  # a number beyond 64 bits; of what follows none is
        plain = bulk_plain.derive(table, begun, now)
        return Derived(list(map(_column, plain.columns)), plain.problems)
    failed = bytes(map(is_failed, table.rows)) if table.has_failed() else b""
    columns, problems = _native.derive(table.numbers, failed, begun, now, SLACK_NS, MOST_TOKENS)
    return Derived(list(map(_view, columns)), dict(zip(PROBLEMS, problems, strict=True)))


def histograms(columns: Sequence[tuple[Column, ...]], bounds: Sequence[tuple[int, ...]]) -> list[Bins | None]:
    """Sort the known values of columns into buckets, of each column all parts; see ``bulk_plain.histograms``."""
    parts = tuple(tuple(part.obj for part in column) for column in columns)
    return [
        None if one is None else Bins(one[0], (one[1] << LOW_BITS) + one[2], *one[3:])
        for one in _native.histograms(parts, tuple(map(_bounds, bounds)))
    ]


def largest(column: Column, floor: int, count: int) -> list[int]:
    """Find the places of at least the ``count`` largest values above ``floor``; of ties all."""
    places: list[int] = _native.largest(column.obj, floor, count)
    return places


def scores(ids: Sequence[str], seed: int) -> Column:
    """Give each id a number of 63 bits that depends on nothing but it and the seed, evenly spread."""
    try:
        return _view(_native.scores(ids, seed))
    except UnicodeEncodeError:  # half a character
        return _column(bulk_plain.scores(ids, seed))


def finished(derived: Derived) -> Finished | None:
    """Look at the requests whose duration is known; see ``bulk_plain.finished``."""
    columns = derived.columns
    found = _native.finished(columns.duration.obj, columns.started.obj, columns.ended.obj)
    return None if found is None else Finished(*found)


def ordered(values: array[int]) -> Column:
    """Sort."""
    return _view(_native.ordered(values.tobytes()))


def _view(data: bytes) -> Column:
    return memoryview(data).cast("q")


def _column(values: Iterable[int]) -> Column:
    return _view(array("q", values).tobytes())


@lru_cache(maxsize=64)
def _bounds(bounds: tuple[int, ...]) -> bytes:
    return array("q", bounds).tobytes()
