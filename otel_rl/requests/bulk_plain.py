"""The arithmetic of many requests in plain Python; ``bulk_native`` does the same, and a test says that it does."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from heapq import nlargest
from itertools import chain
from operator import itemgetter
from typing import Final, NamedTuple
from zlib import crc32

from otel_rl.requests.columns import COUNTS, FAILED, MOST_TOKENS, SLACK_NS, TIMES, Column, Derived, Table
from otel_rl.requests.queue import UNKNOWN, Request

MASK: Final = (1 << 64) - 1
FACTORS: Final = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53
"""Of MurmurHash3's finalizer (public domain), which spreads what ids that follow each other leave close together."""
PROBLEMS: Final = ("impossible_time", "unfinished", "reversed", "tokens")
_GIVEN: Final = itemgetter(*map(Request._fields.index, (*TIMES, *COUNTS, "finish", "error")))


class Bins(NamedTuple):
    """A histogram of one column: counts by bucket, and what the buckets do not say."""

    counts: list[int]
    total: int
    low: int
    high: int


class Finished(NamedTuple):
    """The requests whose duration is known; times in ns."""

    ends: bytes
    """Their ends, numbers of 64 bits."""
    submitted: int
    """The first submission."""
    started: int
    """The first start; 0 where one is not known."""
    last_started: int
    ended: int
    """The last end."""


def derive(table: Table, begun: int, now: int) -> Derived:
    """Derive the times of each request and judge its numbers.

    Args:
        table: clean rows.
        begun: the begin of the process, monotonic ns: no time can be earlier, but 0, which is not known.
        now: the present, monotonic ns: no time can be later.
    """
    made = []
    impossible = backwards = wrong = 0
    for *told, prompt, response, reused, evicted, finish, error in map(_GIVEN, table.rows):
        times = told
        if min(told) < begun or max(told) > now:
            times = [time if begun <= time <= now else 0 for time in told]
            impossible += times != told
        submitted, ended, started, first, last = times
        duration = _between(submitted, ended, SLACK_NS)
        ttft = _between(submitted, first, SLACK_NS)
        queue = _between(submitted, started, SLACK_NS)
        prefill = _between(started, first, 0)
        decode = _between(first, last, 0)
        spans = duration, ttft, queue, prefill, decode, _between(last, ended, SLACK_NS)
        if min(spans) < -1:
            backwards += 1
            duration, ttft, queue, prefill, decode, _ = [max(span, -1) for span in spans]
        inside = prompt if 1 <= prompt < MOST_TOKENS else UNKNOWN
        least = 0 if error or finish in FAILED else 1
        output = response if least <= response < MOST_TOKENS else UNKNOWN
        cached = reused if 0 <= reused < MOST_TOKENS and (inside == UNKNOWN or reused <= inside) else UNKNOWN
        wrong += (inside, output, cached) != (prompt, response, reused)
        tpot = decode // (output - 1) if output > 1 and decode >= 0 else -1
        preemptions = evicted if 0 <= evicted < MOST_TOKENS else UNKNOWN
        made.append((duration, ttft, queue, prefill, decode, tpot, inside, output, cached, preemptions, started, ended))
    unfinished = sum(not ended for ended in table.column("ended"))
    problems = dict(zip(PROBLEMS, (impossible, unfinished, backwards, wrong), strict=True))
    return Derived(list(zip(*made, strict=True)), problems)


def _between(begin: int, end: int, slack: int) -> int:
    """Give the time between two known times; -1 where one is unknown, -2 where they are reversed."""
    if not begin or not end:
        return -1
    if end < begin:
        return 0 if begin - end <= slack else -2
    return end - begin


def histograms(columns: Sequence[tuple[Column, ...]], bounds: Sequence[tuple[int, ...]]) -> list[Bins | None]:
    """Sort the known values of columns into buckets; None where no value is known.

    Args:
        columns: of each histogram the parts of its column.
        bounds: its boundaries, ascending.
    """
    return [_histogram(list(chain(*column)), limits) for column, limits in zip(columns, bounds, strict=True)]


def _histogram(column: list[int], bounds: tuple[int, ...]) -> Bins | None:
    low, high = min(column), max(column)
    if high < 0:
        return None
    counts = [0] * (len(bounds) + 1)
    if low == high:  # as a batch has one TTFT
        counts[bisect_left(bounds, high)] = len(column)
        return Bins(counts, high * len(column), low, high)
    known = column if low >= 0 else [value for value in column if value >= 0]
    for value in known:
        counts[bisect_left(bounds, value)] += 1
    return Bins(counts, sum(known), min(known), high)


def largest(column: Column, floor: int, count: int) -> list[int]:
    """Find the places of at least the ``count`` largest values above ``floor``; of ties all."""
    known = [value for value in column if value > floor]
    if len(known) > count:
        floor = nlargest(count, known)[-1] - 1
    return [place for place, value in enumerate(column) if value > floor]


def scores(ids: Sequence[str], seed: int) -> Column:
    """Give each id a number of 63 bits that depends on nothing but it and the seed, evenly spread."""
    return [_mixed(crc32(one) ^ seed) for one in _texts(ids)]


def _texts(ids: Sequence[str]) -> list[bytes]:
    """Encode ids for hashing."""
    try:
        return list(map(str.encode, ids))
    except UnicodeEncodeError:  # half a character
        return [one.encode("utf-8", "surrogatepass") for one in ids]


def _mixed(value: int) -> int:
    for factor in FACTORS:
        value = (value ^ (value >> 33)) * factor & MASK
    return (value ^ (value >> 33)) >> 1


def finished(derived: Derived) -> Finished | None:
    """Look at the requests whose duration is known; None where there is none."""
    columns = derived.columns
    rows = zip(columns.ended, columns.duration, columns.started, strict=True)
    known = [row for row in rows if row[1] >= 0]
    if not known:
        return None
    ends, _, starts = zip(*known, strict=True)
    submitted = min(ended - duration for ended, duration, _ in known)
    return Finished(array("q", ends).tobytes(), submitted, min(starts), max(starts), max(ends))


def ordered(values: array[int]) -> Column:
    """Sort."""
    return sorted(values)
