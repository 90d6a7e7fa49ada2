"""What the ranks of one step show together: who waited for whom, and who was slow. Durations only, no clocks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from otel_rl.sidecar.compare.rank_step import ComparedStep, RankCollective

LEAST_WAIT_NS: Final = 1_000_000
"""A shorter wait in one collective is no span."""
SPANS: Final = 32
"""The longest waits of one rank in one step that are spans."""

_Key = tuple[str, str, int]
"""Group, operation, number: what ranks have in common without a clock."""


class Wait(NamedTuple):
    """One rank in one collective."""

    rank: int
    collective: RankCollective
    wait_ns: int
    last: int
    """The rank that was waited for."""


def members(steps: Iterable[ComparedStep]) -> dict[str, set[int]]:
    """Return the ranks that are seen in each process group."""
    found: defaultdict[str, set[int]] = defaultdict(set)
    for step in steps:
        for collective in step.collectives:
            found[collective.group].add(step.rank)
    return dict(found)


def longest_waits(
    steps: Mapping[int, ComparedStep], readable: Collection[int], known: Mapping[str, Collection[int]]
) -> Iterator[Wait]:
    """Find the longest waits of each rank in the collectives of one step.

    A collective counts only if every rank of its group whose journal can be read has a span of it. Only the longest
    collectives of a rank are spans, so the one that is missing would be that of the slow rank. If some journals cannot
    be read, a rank without a span may be of the group, unless all its collectives are spans.
    """
    found: defaultdict[int, list[Wait]] = defaultdict(list)
    cut = {rank for rank, step in steps.items() if len(readable) < step.world_size and step.calls.omitted.any()}
    for collectives in _matched(steps).values():
        if not _is_complete(collectives, steps, readable, known) or _may_lack(collectives, cut):
            continue
        least_ns = min(collective.duration_ns for collective in collectives.values())
        waited = {rank: collective.duration_ns - least_ns for rank, collective in collectives.items()}
        last = min(rank for rank, wait_ns in waited.items() if wait_ns == 0)
        for rank, wait_ns in waited.items():
            if wait_ns >= LEAST_WAIT_NS and not collectives[rank].is_idle:
                found[rank].append(Wait(rank, collectives[rank], wait_ns, last))
    for rank in sorted(found):
        longest = sorted(found[rank], key=lambda wait: -wait.wait_ns)[:SPANS]
        yield from sorted(longest, key=lambda wait: wait.collective.begin_ns)


def disagree(steps: Iterable[ComparedStep]) -> bool:
    """Return whether two ranks give one number to different steps: their collectives of one group are too far apart.

    Those of one step lie no farther apart than the step has collectives.
    """
    ranges: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    count = 0
    for step in steps:
        count = max(count, step.comm_count)
        numbers: defaultdict[str, list[int]] = defaultdict(list)
        for collective in step.collectives:
            if collective.sequence:
                numbers[collective.group].append(collective.sequence)
        for group, found in numbers.items():
            ranges[group].append((min(found), max(found)))
    return any(_are_apart(of_group, count) for of_group in ranges.values())


def _are_apart(ranges: list[tuple[int, int]], count: int) -> bool:
    firsts, lasts = [first for first, _ in ranges], [last for _, last in ranges]
    return max(firsts) > min(lasts) and max(lasts) - min(firsts) >= count


def _matched(steps: Mapping[int, ComparedStep]) -> dict[_Key, dict[int, RankCollective]]:
    """Match the collectives over the ranks; one that a rank seems to have twice is left out."""
    matched: defaultdict[_Key, dict[int, RankCollective]] = defaultdict(dict)
    wrong = {(*name, number) for name, numbers in _uneven(steps).items() for number in numbers}
    for rank, step in steps.items():
        for key, collective in _numbered(step):
            if rank in matched[key]:
                wrong.add(key)
            matched[key][rank] = collective
    return {key: collectives for key, collectives in matched.items() if key not in wrong}


def _numbered(step: ComparedStep) -> Iterator[tuple[_Key, RankCollective]]:
    """Return the key of each collective; without a number it is numbered within the step, below 0."""
    without: Counter[tuple[str, str]] = Counter()
    for collective in step.collectives:
        name = collective.group, collective.operation
        without[name] -= not collective.sequence
        yield (*name, collective.sequence or without[name]), collective


def _uneven(steps: Mapping[int, ComparedStep]) -> dict[tuple[str, str], range]:
    """Find what has no numbers and is more frequent on one rank: then the k-th of one is not that of another."""
    counts: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for step in steps.values():
        found = Counter(
            (collective.group, collective.operation) for collective in step.collectives if not collective.sequence
        )
        for name, number in found.items():
            counts[name].add(number)
    return {name: range(-max(numbers), 0) for name, numbers in counts.items() if len(numbers) > 1}


def _may_lack(collectives: Mapping[int, RankCollective], cut: Collection[int]) -> bool:
    """Whether a rank may be of the group of a collective without a span of it."""
    return len(collectives) < next(iter(collectives.values())).size and any(rank not in collectives for rank in cut)


def _is_complete(
    collectives: Mapping[int, RankCollective],
    steps: Mapping[int, ComparedStep],
    readable: Collection[int],
    known: Mapping[str, Collection[int]],
) -> bool:
    first = next(iter(collectives.values()))
    if len(collectives) < 2 or len(collectives) >= first.size:
        return len(collectives) == first.size > 1
    world_size = max(step.world_size for step in steps.values())
    if len(readable) >= world_size:
        return False
    return set(collectives) == set(readable if first.size == world_size else known.get(first.group, ()))
