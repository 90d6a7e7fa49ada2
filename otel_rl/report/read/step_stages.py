"""The stages of one rank in one step, kept small: a run has a million of them."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from otel_rl.analysis.stages import NO_COMM, Comm, Path, StageTimes, is_apart

if TYPE_CHECKING:
    from otel_rl.tables.forest import Ints

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

    def busy_of(self, path: Path) -> int:
        """Return the union of the calls of one stage, ns."""
        known = self._places.get(path)
        return self._numbers[known[0]] if known is not None else 0

    def busy(self) -> Iterator[tuple[Path, int]]:
        """Return the union of the calls of each stage, ns; a tenth of the time that whole stages take."""
        return ((path, self._numbers[first]) for path, (first, _) in self._places.items())

    @property
    def shape(self) -> Mapping[Path, tuple[int, Clocks]]:
        """Return the place of each stage; the same object in all steps that have the same stages."""
        return self._places

    @property
    def numbers(self) -> array[int]:
        """``NUMBERS`` of each stage, then the durations of all calls."""
        return self._numbers


class StageInSteps(NamedTuple):
    """One stage in all the steps that have it."""

    step: Ints
    """The places of the steps that have the stage, in order."""
    durations_ns: Ints
    """The duration of each of its calls, step by step."""
    busy_ns: Ints
    own_ns: Ints
    comm_count: Ints
    comm_ns: Ints
    is_hidden: bool = False
    """In any step, as ``is_host_clock``; ``is_device_clock`` in each."""
    is_host_clock: bool = False
    is_device_clock: bool = False


def in_steps(steps: Sequence[PackedStages]) -> dict[Path, StageInSteps]:
    """Return each stage of some steps as arrays. Cost: 0.4 us a stage of a step, 3 us a stage."""
    numbers = np.frombuffer(b"".join([one.numbers for one in steps]), np.int64)
    codes: dict[Path, int] = {}
    rows = {
        key: np.array([[codes.setdefault(path, len(codes)), *clocks] for path, (_, clocks) in shape.items()], np.int64)
        for key, shape in {id(one.shape): one.shape for one in steps}.items()
    }
    of_steps = [rows[id(one.shape)].reshape(-1, 4) for one in steps] or [np.zeros((0, 4), np.int64)]
    size = np.array([len(one) for one in of_steps], np.int64)
    length = np.array([len(one.numbers) for one in steps] or [0], np.int64)
    table = np.concatenate(of_steps)
    path, clocks = table[:, 0], table[:, 1:] != 0
    place = np.arange(len(path)) - np.repeat(np.cumsum(size) - size, size)
    begin = np.repeat(np.cumsum(length) - length, size)
    order = np.argsort(path.astype(np.uint16 if len(codes) < 1 << 16 else np.int64), kind="stable")
    at = (begin + NUMBERS * place)[order]
    calls_before = np.where(place[order] > 0, numbers[at - 1], 0) if len(at) else at
    first_call = (begin + NUMBERS * np.repeat(size, size))[order] + calls_before
    calls = numbers[at + NUMBERS - 1] - calls_before
    ends = np.concatenate([[0], np.cumsum(calls)])
    durations = numbers[np.repeat(first_call - ends[:-1], calls) + np.arange(ends[-1])]
    step = np.repeat(np.arange(len(size)), size)[order]
    columns = numbers[at[:, np.newaxis] + np.arange(4)].T.copy()
    bounds = np.searchsorted(path[order], np.arange(len(codes) + 1)).tolist()
    is_any = np.logical_or.reduceat(clocks[order], bounds[:-1]).tolist() if codes else []
    is_all = np.logical_and.reduceat(clocks[order], bounds[:-1]).tolist() if codes else []
    of_calls = ends[bounds].tolist()
    found: dict[Path, StageInSteps] = {}
    for code, name in enumerate(codes):
        low, high = bounds[code : code + 2]
        busy_ns, own_ns, comm_count, comm_ns = columns[:, low:high]
        found[name] = StageInSteps(
            step[low:high], durations[of_calls[code] : of_calls[code + 1]], busy_ns, own_ns, comm_count, comm_ns,
            is_hidden=is_any[code][0], is_host_clock=is_any[code][1], is_device_clock=is_all[code][2],
        )  # fmt: skip
    return found
