"""The arithmetic of many requests with numpy, as ``bulk_plain`` defines it: the same numbers to the last bit.

Everything is a whole number of ns, so that no order of summing makes a difference.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any
from zlib import crc32

import numpy as np

from otel_rl.requests import UNKNOWN
from otel_rl.rollouts.bulk_plain import FACTORS, Bins
from otel_rl.rollouts.columns import MOST_TOKENS, SLACK_NS, TIMES, Column, Derived, Table, is_failed, texts

_LOW = 20
"""Bits that are summed apart, so that no sum leaves 64 bits."""


def derive(source: Table, begun: int, now: int) -> Derived:
    """Derive the times of each request and judge its numbers; see ``bulk_plain.derive``."""
    table = source.columns
    count = len(source.rows)
    wrong: Any = np.zeros(count, bool)
    times = {}
    for name in TIMES:
        given = _array(source, name)
        impossible = ((given < begun) & (given != 0)) | (given > now)
        wrong |= impossible
        times[name] = np.where(impossible, 0, given)
    problems = Counter(impossible_time=int(wrong.sum()), unfinished=table.ended.count(0))
    submitted, ended, started, first, last = times.values()
    spans = [
        _between(submitted, ended, SLACK_NS),
        _between(submitted, first, SLACK_NS),
        _between(submitted, started, SLACK_NS),
        _between(started, first, 0),
        _between(first, last, 0),
        _between(last, ended, SLACK_NS),
    ]
    problems["reversed"] = int(np.any([span < -1 for span in spans], axis=0).sum())
    duration, ttft, queue, prefill, decode, _ = (np.maximum(span, -1) for span in spans)
    (given, output, cached), wrong = _tokens(source, count)
    problems["tokens"] = int(wrong.sum())
    preemptions = _array(source, "preemptions")
    derived = Derived(
        duration,
        ttft,
        queue,
        prefill,
        decode,
        np.where((output > 1) & (decode >= 0), decode // np.maximum(output - 1, 1), -1),
        given,
        output,
        cached,
        np.where((preemptions >= 0) & (preemptions < MOST_TOKENS), preemptions, UNKNOWN),
        started,
        ended,
    )
    derived.problems.update(problems)
    return derived


def _array(source: Table, name: str) -> Any:
    made = source.arrays.get(name)
    if made is not None:
        return np.frombuffer(made, np.int64)
    return np.fromiter(getattr(source.columns, name), np.int64, len(source.rows))


def _between(begin: Any, end: Any, slack: int) -> Any:
    passed = end - begin
    passed = np.where(passed >= 0, passed, np.where(passed >= -slack, 0, -2))
    return np.where((begin > 0) & (end > 0), passed, -1)


def _tokens(source: Table, count: int) -> tuple[tuple[Any, Any, Any], Any]:
    least: Any = 1
    if source.has_failed():
        least = 1 - np.fromiter(map(is_failed, source.rows), np.int64, count)
    given, wrong_input = _usable(_array(source, "input_tokens"), 1)
    output, wrong_output = _usable(_array(source, "output_tokens"), least)
    cached, wrong_cached = _usable(_array(source, "cached_tokens"), 0)
    above = (given != UNKNOWN) & (cached > given)
    return (given, output, np.where(above, UNKNOWN, cached)), wrong_input | wrong_output | wrong_cached | above


def _usable(tokens: Any, least: Any) -> tuple[Any, Any]:
    is_wrong = (tokens != UNKNOWN) & ((tokens < least) | (tokens >= MOST_TOKENS))
    return np.where(is_wrong, UNKNOWN, tokens), is_wrong


def histogram(column: Column, bounds: Sequence[int]) -> Bins | None:
    """Sort the known values of a column into buckets; None where no value is known."""
    low, high = int(column.min()), int(column.max())
    if high < 0:
        return None
    if low == high:  # as a batch has one TTFT
        counts = [0] * (len(bounds) + 1)
        counts[bisect_left(bounds, high)] = len(column)
        return Bins(counts, high * len(column), low, high)
    known = column if low >= 0 else column[column >= 0]
    counts = np.bincount(np.searchsorted(_bounds(tuple(bounds)), known), minlength=len(bounds) + 1).tolist()
    total = (int((known >> _LOW).sum()) << _LOW) + int((known & ((1 << _LOW) - 1)).sum())
    return Bins(counts, total, low if low >= 0 else int(known.min()), high)


@lru_cache(maxsize=64)
def _bounds(bounds: tuple[int, ...]) -> Any:
    return np.asarray(bounds, np.int64)


def largest(column: Column, floor: int, count: int) -> list[int]:
    """Find the places of at least the ``count`` largest values above ``floor``; of ties all."""
    known = column[column > floor]
    if known.size > count:
        floor = int(np.partition(known, known.size - count)[known.size - count]) - 1
    places: list[int] = np.flatnonzero(column > floor).tolist()
    return places


def scores(ids: Sequence[str], seed: int) -> Column:
    """Give each id a number of 63 bits that depends on nothing but it and the seed, evenly spread."""
    value = np.fromiter(map(crc32, texts(ids)), np.uint64, len(ids)) ^ np.uint64(seed)
    for factor in FACTORS:
        value = (value ^ (value >> np.uint64(33))) * np.uint64(factor)
    return ((value ^ (value >> np.uint64(33))) >> np.uint64(1)).astype(np.int64)


def total(column: Column) -> int | None:
    """Add up the known values of a column; None where no value is known."""
    known = column[column >= 0]
    return int(known.sum()) if known.size else None


def finished(derived: Derived) -> tuple[bytes, int, int, int] | None:
    """Look at the requests whose duration is known; see ``bulk_plain.finished``."""
    known = derived.duration >= 0
    ends, starts = derived.ended[known], derived.started[known]
    if not ends.size:
        return None
    first = int((ends - derived.duration[known]).min())
    return ends.tobytes(), first, int(starts.min()), int(starts.max())


def ordered(values: Sequence[int]) -> Sequence[int]:
    """Sort."""
    found: list[int] = np.sort(np.fromiter(values, np.int64, len(values))).tolist()
    return found
