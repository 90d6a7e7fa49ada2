"""The stages of one rank in one step, kept small: a run has a million of them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from otel_rl.analysis.stages import NO_COMM, Comm, Path, StageTimes

FULL: Final = 5
"""Numbers of a stage: union, own time, collectives, time in them, end of its durations, which follow after all stages.
One call without collectives has one number, its duration."""
HIDDEN, HOST, DEVICE, SINGLE = 1, 2, 4, 8


class StagePosition(NamedTuple):
    """Where the numbers of a stage are."""

    first: int
    flags: int
    before: int


class Shape(NamedTuple):
    """Which stage is where, and where the durations begin; shared by all steps that have the same."""

    positions: dict[Path, StagePosition]
    size: int


Shapes = dict[tuple[tuple[Path, int], ...], Shape]


class StepStages(Mapping[Path, StageTimes]):
    """Stages by path: 8 bytes one with one call and no collectives, 48 another; as an object it takes 400."""

    __slots__ = ("_numbers", "_shape")

    def __init__(self, stages: Mapping[Path, StageTimes], known: Shapes) -> None:
        key = tuple((path, _flags(stage)) for path, stage in stages.items())
        self._shape = known.get(key) or known.setdefault(key, _shape(key))
        numbers: list[int] = []
        durations: list[int] = []
        for (_, flags), stage in zip(key, stages.values(), strict=True):
            if flags & SINGLE:
                numbers += stage.durations_ns
            else:
                durations += stage.durations_ns
                numbers += (stage.busy_ns, stage.own_ns, stage.comm.count, stage.comm.time_ns, len(durations))
        self._numbers = array("q", numbers + durations)

    def __getitem__(self, path: Path) -> StageTimes:
        (positions, size), numbers = self._shape, self._numbers
        first, flags, before = positions[path]
        clocks = flags & HIDDEN > 0, flags & HOST > 0, flags & DEVICE > 0
        if flags & SINGLE:
            time_ns = numbers[first]
            return StageTimes((time_ns,), time_ns, time_ns, NO_COMM, *clocks)
        busy_ns, own_ns, count, time_ns, end = numbers[first : first + FULL]
        begin = numbers[before] if before >= 0 else 0
        return StageTimes(tuple(numbers[size + begin : size + end]), busy_ns, own_ns, Comm(count, time_ns), *clocks)

    def __contains__(self, path: object) -> bool:
        return path in self._shape.positions

    def __iter__(self) -> Iterator[Path]:
        return iter(self._shape.positions)

    def __len__(self) -> int:
        return len(self._shape.positions)

    def collectives(self) -> Iterator[tuple[Path, Comm]]:
        for path, (first, flags, _) in self._shape.positions.items():
            if not flags & SINGLE and self._numbers[first + 2]:
                yield path, Comm(self._numbers[first + 2], self._numbers[first + 3])


def _flags(stage: StageTimes) -> int:
    times = stage.durations_ns
    is_single = len(times) == 1 and stage.comm == NO_COMM and stage.busy_ns == stage.own_ns == times[0]
    return HIDDEN * stage.is_hidden + HOST * stage.is_host_clock + DEVICE * stage.is_device_clock + SINGLE * is_single


def _shape(key: tuple[tuple[Path, int], ...]) -> Shape:
    positions: dict[Path, StagePosition] = {}
    size, before = 0, -1
    for path, flags in key:
        positions[path] = StagePosition(size, flags, before)
        size += 1 if flags & SINGLE else FULL
        before = before if flags & SINGLE else size - 1
    return Shape(positions, size)
