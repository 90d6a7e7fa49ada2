"""What the ranks of one step show together: who waited for whom, and who was slow. Durations only, no clocks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from otel_rl.analysis.waits import waits
from otel_rl.sidecar.compare.rank_step import Part, Row

LEAST_WAIT_NS: Final = 1_000_000
"""A shorter wait in one collective is no span."""
SPANS: Final = 32
"""Of one rank in one step: its longest waits."""

_Key = tuple[str, str, int]
"""Group, operation, number: what ranks have in common without a clock."""


class Wait(NamedTuple):
    """One rank in one collective."""

    rank: int
    row: Row
    wait_ns: int
    last: int
    """The rank that was waited for."""


def members(parts: Iterable[Part]) -> dict[str, set[int]]:
    """Say which ranks are seen in each process group."""
    found: defaultdict[str, set[int]] = defaultdict(set)
    for part in parts:
        for row in part.rows:
            found[row.group].add(part.rank)
    return dict(found)


def longest_waits(
    parts: Mapping[int, Part], readable: Collection[int], known: Mapping[str, Collection[int]]
) -> Iterator[Wait]:
    """Find the longest waits of each rank in the collectives of one step.

    A collective counts only with a row of every rank of its group whose journal can be read: only the longest ones of a
    rank are rows, so the one that is missing would be the one that was waited for. Where some of a group cannot be
    read, nobody knows whether a rank without a row is of the group unless all its collectives are rows.

    Args:
        parts: of one step, by rank.
        readable: all ranks whose journals can be read.
        known: the ranks that were ever seen in each group.
    """
    found: defaultdict[int, list[Wait]] = defaultdict(list)
    cut = {
        rank
        for rank, part in parts.items()
        if len(readable) < part.world_size and any(call.omitted for call in part.calls.of(rank))
    }
    for rows in _matched(parts).values():
        if not _is_complete(rows, parts, readable, known) or _may_lack(rows, cut):
            continue
        waited = waits({rank: row.duration_ns for rank, row in rows.items()})
        last = min(rank for rank, wait_ns in waited.items() if wait_ns == 0)
        for rank, wait_ns in waited.items():
            if wait_ns >= LEAST_WAIT_NS and not rows[rank].is_idle:
                found[rank].append(Wait(rank, rows[rank], wait_ns, last))
    for rank in sorted(found):
        longest = sorted(found[rank], key=lambda wait: -wait.wait_ns)[:SPANS]
        yield from sorted(longest, key=lambda wait: wait.row.begin_ns)


def disagree(parts: Iterable[Part]) -> bool:
    """Say whether two ranks call different steps by one number: their collectives of one group are too far apart.

    Those of one step lie no farther apart than the step has collectives.
    """
    ranges: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    count = 0
    for part in parts:
        count = max(count, part.comm_count)
        numbers: defaultdict[str, list[int]] = defaultdict(list)
        for row in part.rows:
            if row.sequence:
                numbers[row.group].append(row.sequence)
        for group, found in numbers.items():
            ranges[group].append((min(found), max(found)))
    return any(_are_apart(of_group, count) for of_group in ranges.values())


def _are_apart(ranges: list[tuple[int, int]], count: int) -> bool:
    firsts, lasts = [first for first, _ in ranges], [last for _, last in ranges]
    return max(firsts) > min(lasts) and max(lasts) - min(firsts) >= count


def _matched(parts: Mapping[int, Part]) -> dict[_Key, dict[int, Row]]:
    """Match the collectives over the ranks; one that a rank seems to have twice is none."""
    matched: defaultdict[_Key, dict[int, Row]] = defaultdict(dict)
    wrong = {(*name, number) for name, numbers in _uneven(parts).items() for number in numbers}
    for rank, part in parts.items():
        for key, row in _numbered(part):
            if rank in matched[key]:
                wrong.add(key)
            matched[key][rank] = row
    return {key: rows for key, rows in matched.items() if key not in wrong}


def _numbered(part: Part) -> Iterator[tuple[_Key, Row]]:
    """Name each collective; one without a number by which of its step it is, below 0."""
    without: Counter[tuple[str, str]] = Counter()
    for row in part.rows:
        name = row.group, row.operation
        without[name] -= not row.sequence
        yield (*name, row.sequence or without[name]), row


def _uneven(parts: Mapping[int, Part]) -> dict[tuple[str, str], range]:
    """Find what has no numbers and is there more often on one rank: then the k-th of one is not that of another."""
    counts: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for part in parts.values():
        found = Counter((row.group, row.operation) for row in part.rows if not row.sequence)
        for name, number in found.items():
            counts[name].add(number)
    return {name: range(-max(numbers), 0) for name, numbers in counts.items() if len(numbers) > 1}


def _may_lack(rows: Mapping[int, Row], cut: Collection[int]) -> bool:
    """Whether a rank may be of the group of a collective, and its row the one that was left out."""
    return len(rows) < next(iter(rows.values())).size and any(rank not in rows for rank in cut)


def _is_complete(
    rows: Mapping[int, Row],
    parts: Mapping[int, Part],
    readable: Collection[int],
    known: Mapping[str, Collection[int]],
) -> bool:
    first = next(iter(rows.values()))
    if len(rows) < 2 or len(rows) >= first.size:
        return len(rows) == first.size > 1
    world_size = max(part.world_size for part in parts.values())
    if len(readable) >= world_size:
        return False
    return set(rows) == set(readable if first.size == world_size else known.get(first.group, ()))
