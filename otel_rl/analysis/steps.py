"""Steps tile the loop: each lasts from its begin to the next one's. Ranks call the same step by the same number.

Steps of several tasks or threads may overlap instead: then each lasts to its own end.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Generic, NamedTuple, TypeVar

WARMUP_STEPS: Final = 2
"""First steps of an attempt that stay out of averages: they allocate, compile and fill caches."""

RankT = TypeVar("RankT", bound=Hashable)
Name = tuple[str, int]
"""Loop and number of a step: what its trace is made from."""


@dataclass(frozen=True, slots=True)
class Disagreement(Generic[RankT]):
    """Ranks that call the same step by different numbers; their spans of it are in different traces."""

    first: Mapping[RankT, Name]
    steps: int
    compared: int


class Step(NamedTuple):
    """One step of one rank; ordered by its begin."""

    begin_ns: int
    end_ns: int
    loop: str
    iteration: int

    @property
    def time_ns(self) -> int:
        return self.end_ns - self.begin_ns


def tile(steps: Sequence[Step]) -> list[Step]:
    """Let each step of one rank and attempt end where the next one begins; return them in order of time.

    A step without its successor (the last of a loop, or a lost record) keeps its own end, so that a hole in the record
    never makes a step longer. So does one that goes on while the next one has begun.
    """
    ordered = sorted(steps)
    tiled = [
        Step(
            begin,
            following if following > end and number == iteration + 1 and name == loop else end,
            loop,
            iteration,
        )
        for (begin, end, loop, iteration), (following, _, name, number) in pairwise(ordered)
    ]
    return tiled + ordered[-1:]


def warmup(count: int) -> int:
    """Return how many first steps of an attempt stay out of averages: two, fewer if it has less than eight."""
    return min(WARMUP_STEPS, count // 4)


def disagreement(names: Mapping[RankT, Sequence[Name]]) -> Disagreement[RankT] | None:
    """Compare what peers call their steps: the k-th of one rank is the k-th of every other. None if they agree.

    Args:
        names: of all steps of each rank, in order of time and without a hole. One rank may have more than another,
            which died or is not as far yet.
    """
    lengths = sorted(map(len, names.values()))
    compared = lengths[-2] if len(lengths) > 1 else 0
    longest = max(names.values(), key=len, default=[])
    if all(own[:compared] == longest[: len(own)][:compared] for own in names.values()):
        return None
    different = [k for k in range(compared) if len({own[k] for own in names.values() if len(own) > k}) > 1]
    if not different:
        return None
    first = {rank: own[different[0]] for rank, own in names.items() if len(own) > different[0]}
    return Disagreement(first, len(different), compared)
