"""The stages of one rank in one step, kept small: a run has a million of them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from otel_rl.analysis.stages import NO_COMM, Comm, Path, Slice

FULL: Final = 5
"""Numbers of a stage: union, own time, collectives, time in them, end of its durations, which come behind. Of one call
without collectives its duration says all of this."""
HIDDEN, HOST, DEVICE, SINGLE = 1, 2, 4, 8


class Place(NamedTuple):
    """Where the numbers of a stage stand."""

    first: int
    flags: int
    before: int
    """Where the number is from which on its durations are; -1: they are the first."""


class Shape(NamedTuple):
    """Which stage stands where, and where the durations begin; shared by all steps that have the same."""

    places: dict[Path, Place]
    size: int


Shapes = dict[tuple[tuple[Path, int], ...], Shape]


class Slices(Mapping[Path, Slice]):
    """Slices by path. Cost: 8 bytes a stage with one call and no collectives, 48 another; as an object it takes 400."""

    __slots__ = ("_numbers", "_shape")

    def __init__(self, slices: Mapping[Path, Slice], known: Shapes) -> None:
        """Keep slices.

        Args:
            slices: of one step.
            known: shapes of other steps, to be shared.
        """
        key = tuple((path, _flags(part)) for path, part in slices.items())
        self._shape = known.get(key) or known.setdefault(key, _shape(key))
        numbers: list[int] = []
        durations: list[int] = []
        for (_, flags), part in zip(key, slices.values(), strict=True):
            if flags & SINGLE:
                numbers += part.durations_ns
            else:
                durations += part.durations_ns
                numbers += (part.busy_ns, part.own_ns, part.comm.count, part.comm.time_ns, len(durations))
        self._numbers = array("q", numbers + durations)

    def __getitem__(self, path: Path) -> Slice:
        """Make the slice of a path."""
        (places, size), numbers = self._shape, self._numbers
        first, flags, before = places[path]
        if flags & SINGLE:
            time_ns = numbers[first]
            return Slice(
                (time_ns,), time_ns, time_ns, NO_COMM, flags & HIDDEN > 0, flags & HOST > 0, flags & DEVICE > 0
            )
        busy_ns, own_ns, count, time_ns, end = numbers[first : first + FULL]
        return Slice(
            durations_ns=tuple(numbers[size + (numbers[before] if before >= 0 else 0) : size + end]),
            busy_ns=busy_ns,
            own_ns=own_ns,
            comm=Comm(count, time_ns),
            is_hidden=flags & HIDDEN > 0,
            is_host_clock=flags & HOST > 0,
            is_device_clock=flags & DEVICE > 0,
        )

    def __contains__(self, path: object) -> bool:
        """Say whether the step has a stage, without making its slice."""
        return path in self._shape.places

    def __iter__(self) -> Iterator[Path]:
        """Give the paths in their order."""
        return iter(self._shape.places)

    def __len__(self) -> int:
        """Say how many stages there are."""
        return len(self._shape.places)

    def collectives(self) -> Iterator[tuple[Path, Comm]]:
        """Give the collectives of each stage that has any, without making its slice."""
        for path, (first, flags, _) in self._shape.places.items():
            if not flags & SINGLE and self._numbers[first + 2]:
                yield path, Comm(self._numbers[first + 2], self._numbers[first + 3])


def _flags(part: Slice) -> int:
    is_single = (
        len(part.durations_ns) == 1 and part.comm == NO_COMM and part.busy_ns == part.own_ns == part.durations_ns[0]
    )
    return HIDDEN * part.is_hidden + HOST * part.is_host_clock + DEVICE * part.is_device_clock + SINGLE * is_single


def _shape(key: tuple[tuple[Path, int], ...]) -> Shape:
    places: dict[Path, Place] = {}
    size, before = 0, -1
    for path, flags in key:
        places[path] = Place(size, flags, before)
        if flags & SINGLE:
            size += 1
        else:
            before = size + FULL - 1
            size += FULL
    return Shape(places, size)
