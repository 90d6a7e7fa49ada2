"""The arithmetic of many requests in plain Python; ``bulk_numpy`` does the same, and a test says that it does."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from heapq import nlargest
from typing import Final, NamedTuple
from zlib import crc32

from otel_rl.requests import UNKNOWN, Request
from otel_rl.rollouts.columns import MOST_TOKENS, SLACK_NS, Column, Derived, Table, is_failed, texts

MASK: Final = (1 << 64) - 1
FACTORS: Final = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53
"""Of MurmurHash3's finalizer (public domain), which spreads what ids that follow each other leave close together."""


class Bins(NamedTuple):
    """A histogram of one column: counts by bucket, and what the buckets do not say."""

    counts: list[int]
    total: int
    low: int
    high: int


def derive(source: Table, now: int) -> Derived:
    """Derive the times of each request and judge its numbers.

    Args:
        source: clean rows.
        now: the present, monotonic ns: no time can be later.
    """
    return derive_rows(source.rows, now)


def derive_rows(rows: Sequence[Request], now: int) -> Derived:
    """Derive the times of rows that are no table."""
    derived = Derived(*([] for _ in range(12)))
    for row in rows:
        _derive(row, now, derived)
    return derived


def _derive(row: Request, now: int, derived: Derived) -> None:
    problems = derived.problems
    given = (row.submitted, row.ended, row.scheduled, row.first_token, row.last_token)
    times = [time if 0 <= time <= now else 0 for time in given]
    submitted, ended, started, first, last = times
    problems["impossible_time"] += any(time != one for time, one in zip(times, given, strict=True))
    problems["unfinished"] += not row.ended
    pairs = (
        (submitted, ended, SLACK_NS),
        (submitted, first, SLACK_NS),
        (submitted, started, SLACK_NS),
        (started, first, 0),
        (first, last, 0),
        (last, ended, SLACK_NS),
    )
    spans = [_between(*pair) for pair in pairs]
    problems["reversed"] += any(span < -1 for span in spans)
    duration, ttft, queue, prefill, decode, _ = (max(span, -1) for span in spans)
    tokens, wrong = _tokens(row)
    problems["tokens"] += wrong
    output = tokens[1]
    derived.duration.append(duration)
    derived.ttft.append(ttft)
    derived.queue.append(queue)
    derived.prefill.append(prefill)
    derived.decode.append(decode)
    derived.tpot.append(decode // (output - 1) if output > 1 and decode >= 0 else -1)
    derived.input.append(tokens[0])
    derived.output.append(output)
    derived.cached.append(tokens[2])
    derived.preemptions.append(row.preemptions if 0 <= row.preemptions < MOST_TOKENS else UNKNOWN)
    derived.started.append(started)
    derived.ended.append(ended)


def _between(begin: int, end: int, slack: int) -> int:
    """Give the time between two known times; -1 where one is unknown, -2 where they are reversed."""
    if not begin or not end:
        return -1
    if end < begin:
        return 0 if begin - end <= slack else -2
    return end - begin


def _tokens(row: Request) -> tuple[tuple[int, int, int], bool]:
    """Give input, output and cached tokens, and whether one of them cannot be."""
    least = 0 if is_failed(row) else 1
    inside, wrong_input = _usable(row.input_tokens, 1)
    output, wrong_output = _usable(row.output_tokens, least)
    cached, wrong_cached = _usable(row.cached_tokens, 0)
    if inside != UNKNOWN and cached > inside:
        cached, wrong_cached = UNKNOWN, True
    return (inside, output, cached), wrong_input or wrong_output or wrong_cached


def _usable(tokens: int, least: int) -> tuple[int, bool]:
    is_wrong = tokens != UNKNOWN and not least <= tokens < MOST_TOKENS
    return UNKNOWN if is_wrong else tokens, is_wrong


def histogram(column: Column, bounds: Sequence[int]) -> Bins | None:
    """Sort the known values of a column into buckets; None where no value is known."""
    known = [value for value in column if value >= 0]
    if not known:
        return None
    counts = [0] * (len(bounds) + 1)
    for value in known:
        counts[bisect_left(bounds, value)] += 1
    return Bins(counts, sum(known), min(known), max(known))


def largest(column: Column, floor: int, count: int) -> list[int]:
    """Find the places of at least the ``count`` largest values above ``floor``; of ties all."""
    known = [value for value in column if value > floor]
    if len(known) > count:
        floor = nlargest(count, known)[-1] - 1
    return [place for place, value in enumerate(column) if value > floor]


def scores(ids: Sequence[str], seed: int) -> Column:
    """Give each id a number of 63 bits that depends on nothing but it and the seed, evenly spread."""
    return [_mixed(crc32(one) ^ seed) for one in texts(ids)]


def _mixed(value: int) -> int:
    for factor in FACTORS:
        value = (value ^ (value >> 33)) * factor & MASK
    return (value ^ (value >> 33)) >> 1


def total(column: Column) -> int:
    """Add up the known values of a column."""
    return sum(value for value in column if value > 0)


def finished(derived: Derived) -> tuple[bytes, int, int, int] | None:
    """Look at the requests whose duration is known; None where there is none.

    Returns:
        Their ends as bytes of 64-bit numbers, their first submission, their first and their last start (0: unknown).
    """
    known = [place for place, duration in enumerate(derived.duration) if duration >= 0]
    if not known:
        return None
    ends = array("q", [derived.ended[place] for place in known])
    starts = [derived.started[place] for place in known]
    first = min(derived.ended[place] - derived.duration[place] for place in known)
    return ends.tobytes(), first, min(starts), max(starts)


def ordered(values: Sequence[int]) -> Sequence[int]:
    """Sort."""
    return sorted(values)
