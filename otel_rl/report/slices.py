"""The stages of one rank in one step, kept small: a run has a million of them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from typing import Final

from otel_rl.analysis.stages import Comm, Path, Slice

FIXED: Final = 6
"""Numbers of each stage: union, own time, collectives, time in them, flags, end of its durations; those come behind."""
HIDDEN, HOST, DEVICE = 1, 2, 4
Places = dict[tuple[Path, ...], dict[Path, int]]
"""Which stage stands where, shared by all steps that have the same."""


class Slices(Mapping[Path, Slice]):
    """Slices by path. Cost: 56 bytes a stage with one call, where each slice as an object takes 400."""

    __slots__ = ("_numbers", "_places")

    def __init__(self, slices: Mapping[Path, Slice], known: Places) -> None:
        """Keep slices.

        Args:
            slices: of one step.
            known: places of other steps, to be shared.
        """
        paths = tuple(slices)
        self._places = known.get(paths) or known.setdefault(paths, {path: place for place, path in enumerate(paths)})
        self._numbers = array("q")
        durations = array("q")
        for part in slices.values():
            durations.extend(part.durations_ns)
            flags = HIDDEN * part.is_hidden + HOST * part.is_host_clock + DEVICE * part.is_device_clock
            self._numbers.extend((part.busy_ns, part.own_ns, part.comm.count, part.comm.time_ns, flags, len(durations)))
        self._numbers.extend(durations)

    def __getitem__(self, path: Path) -> Slice:
        """Make the slice of a path."""
        place = self._places[path] * FIXED
        busy_ns, own_ns, count, time_ns, flags, end = self._numbers[place : place + FIXED]
        first = FIXED * len(self._places)
        begin = self._numbers[place - 1] if place else 0
        return Slice(
            durations_ns=tuple(self._numbers[first + begin : first + end]),
            busy_ns=busy_ns,
            own_ns=own_ns,
            comm=Comm(count, time_ns),
            is_hidden=bool(flags & HIDDEN),
            is_host_clock=bool(flags & HOST),
            is_device_clock=bool(flags & DEVICE),
        )

    def __contains__(self, path: object) -> bool:
        """Say whether the step has a stage, without making its slice."""
        return path in self._places

    def __iter__(self) -> Iterator[Path]:
        """Give the paths in their order."""
        return iter(self._places)

    def __len__(self) -> int:
        """Say how many stages there are."""
        return len(self._places)
