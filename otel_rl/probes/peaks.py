"""Peaks of a device's memory made exact by resets, by the user's choice, without the host seeing any of it.

The allocator keeps one peak of each of its numbers. With ``OTEL_RL_MEMORY_PEAK=exact`` it is reset at the begin of
every stage, so that what it shows at the end is the stage's; before each reset the peaks are kept, and whatever the
host reads is raised to them: it reads what it would read without us.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import RLock
from typing import Any, Final

from otel_rl import vocabulary
from otel_rl.records import Value

PEAK: Final = "peak"
Path = tuple[Any, ...]
"""Keys from the outermost dictionary of the statistics to the one that holds a peak."""


class Peaks:
    """The peaks that our resets took away: of the host since its own last reset, and of every open stage."""

    def __init__(
        self, stats: Callable[[int], dict[Any, Any]], reset: Callable[[int], object], index: Callable[[], int]
    ) -> None:
        """Begin without any reset.

        Args:
            stats: reads the allocator of the device of a number, as nested dictionaries.
            reset: resets all of its peaks.
            index: says the number of the current device.
        """
        self._stats = stats
        self._reset = reset
        self._index = index
        self._host: dict[int, dict[Path, int]] = {}
        """By device: the highest values that the host must still see."""
        self._stages: dict[Any, tuple[int, dict[Path, int]]] = {}
        """By open stage: its device, and its peaks until the last reset."""
        self._alone = RLock()
        """Held from a reading to its reset: a stage of another thread that began in between would lose its peak. A
        handler of a signal may open a stage meanwhile."""

    # --- both ends of a stage -----------------------------------------------------------------------------------------

    def begin(self, stage: Any) -> None:
        """Reset the peaks: those since the last reset belong to the host and to the stages around this one."""
        try:
            device = self._index()
            with self._alone:
                host = self._host.setdefault(device, {})  # first: a reset of the host's meanwhile lets go of this one
                found = self._take(device)
                for path, peak in found.items():
                    host[path] = max(host.get(path, 0), peak)
                for gone in host.keys() - found.keys():  # a private pool
                    host.pop(gone, None)
                self._reset(device)
                self._stages[stage] = device, {}
        except RuntimeError:  # the device has failed; the host hears of it from its own calls
            return

    def end(self, stage: Any) -> None:
        """Say the stage's own peaks among its attributes."""
        device, until_reset = self._stages.get(stage, (-1, {}))
        try:
            found = _peaks(self._stats(device)) if device >= 0 else {}  # also where another one is current by now
        except RuntimeError:  # likewise
            return
        finally:  # behind the reading: what another thread resets before it is still given to this stage
            self._stages.pop(stage, None)
        described: dict[str, Value] = {}
        for path, (peak, exact) in _NAMES.items():
            if path in found:
                described |= {peak: max(found[path], until_reset.get(path, 0)), exact: True}
        if stage.attributes is None:
            stage.attributes = described or None
        else:
            stage.attributes.update(described)

    # --- what the host reads and resets -------------------------------------------------------------------------------

    def show(self, device: int, stats: Any) -> None:
        """Raise the peaks in what the host has just read to what it would have read without us."""
        kept = self._host.get(device)
        if kept and isinstance(stats, dict):
            for path, node in _nodes(stats):
                node[PEAK] = max(node[PEAK], kept.get(path, 0))

    def before_reset(self, device: int) -> None:
        """Keep for the open stages what the host is about to reset."""
        try:
            self._take(device)
        except RuntimeError:  # likewise
            return

    def after_reset(self, device: int) -> None:
        """For the host it is over, with what another thread's stage has kept since ``before_reset``."""
        self._host.pop(device, None)

    def forget(self, stage: Any) -> None:
        """Let go of a stage whose end was interrupted."""
        self._stages.pop(stage, None)

    def _take(self, device: int) -> dict[Path, int]:
        """Read the peaks since the last reset and give them to the open stages."""
        found = _peaks(self._stats(device))
        for of, peaks in tuple(self._stages.values()):
            if of == device:
                for path in _NAMES:
                    peaks[path] = max(peaks.get(path, 0), found.get(path, 0))
        return found


_NAMES: Final[dict[Path, tuple[str, str]]] = {
    ("allocated_bytes", "all"): (vocabulary.ALLOCATED_PEAK, vocabulary.ALLOCATED_PEAK_EXACT),
    ("reserved_bytes", "all"): (vocabulary.RESERVED_PEAK, vocabulary.RESERVED_PEAK_EXACT),
}
"""Of a stage: where its peaks are in the statistics, and what they are called."""


def _nodes(stats: dict[Any, Any], above: Path = ()) -> Iterator[tuple[Path, dict[Any, Any]]]:
    """Find every dictionary that holds a peak."""
    for key, value in stats.items():
        if isinstance(value, dict):
            if PEAK in value:
                yield (*above, key), value
            else:
                yield from _nodes(value, (*above, key))


def _peaks(stats: dict[Any, Any]) -> dict[Path, int]:
    return {path: node[PEAK] for path, node in _nodes(stats)}
