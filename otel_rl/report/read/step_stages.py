"""The stages of one rank in one step, kept small: a run has a million of them."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from otel_rl.analysis.stages import NO_COMM, Comm, Path, StageTimes, is_apart

NUMBERS: Final = 5
"""What is packed of a stage: union, own time, collectives, time in them, and the end of its durations."""

Clocks = tuple[bool, bool, bool]
Shapes = dict[tuple[tuple[Path, Clocks], ...], dict[Path, tuple[int, Clocks]]]
"""Which stage is where; shared by all steps that have the same stages."""


def apart(times: Iterable[tuple[Path, float]]) -> dict[str, float]:
    """Add up times by stage; what is of another kind inside a stage counts for itself, and not for that stage."""
    found: defaultdict[str, float] = defaultdict(float)
    for path, time in times:
        if len(path) == 1 or is_apart(*path):
            found[path[-1]] += time
        if len(path) > 1 and is_apart(*path):
            found[path[0]] = max(0.0, found[path[0]] - time)
    return found


class PackedStages(Mapping[Path, StageTimes]):
    """Stages by path: 48 bytes one with one call; as an object it takes 400."""

    __slots__ = ("_numbers", "_places")

    def __init__(self, stages: Mapping[Path, StageTimes], known: Shapes) -> None:
        key = tuple((path, (one.is_hidden, one.is_host_clock, one.is_device_clock)) for path, one in stages.items())
        if key not in known:
            known[key] = {path: (index * NUMBERS, clocks) for index, (path, clocks) in enumerate(key)}
        self._places = known[key]
        numbers, durations = array("q"), array("q")
        for stage in stages.values():
            durations.extend(stage.durations_ns)
            numbers.extend((stage.busy_ns, stage.own_ns, stage.comm.count, stage.comm.time_ns, len(durations)))
        self._numbers = numbers + durations

    def __getitem__(self, path: Path) -> StageTimes:
        first, clocks = self._places[path]
        busy_ns, own_ns, count, time_ns, end = self._numbers[first : first + NUMBERS]
        begin, size = self._numbers[first - 1] if first else 0, len(self) * NUMBERS
        comm = Comm(count, time_ns) if count or time_ns else NO_COMM
        return StageTimes(tuple(self._numbers[size + begin : size + end]), busy_ns, own_ns, comm, *clocks)

    def __contains__(self, path: object) -> bool:
        return path in self._places

    def __iter__(self) -> Iterator[Path]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def busy(self) -> Iterator[tuple[Path, int]]:
        """Return the union of the calls of each stage, ns; a tenth of the time that whole stages take."""
        return ((path, self._numbers[first]) for path, (first, _) in self._places.items())

    def collectives(self) -> Iterator[tuple[Path, Comm]]:
        for path, (first, _) in self._places.items():
            if count := self._numbers[first + 2]:
                yield path, Comm(count, self._numbers[first + 3])
