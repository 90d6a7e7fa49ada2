"""The node and its accelerators at one moment, for the sidecar: no trainer pays for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import psutil

from otel_rl import vocabulary
from otel_rl.guard import guard
from otel_rl.probes.ascend import AscendProbe
from otel_rl.probes.nvidia import NvidiaProbe
from otel_rl.probes.sample import Probe, Sample

LOOPBACK: Final = frozenset({"lo", "lo0"})
DIRECTIONS: Final = ("receive", "transmit")


class HostProbe:
    """CPU as the mean since the sample before."""

    name = "host"

    def __init__(self) -> None:
        psutil.cpu_percent(None)
        self._interfaces: dict[str, tuple[int, int]] = {}
        """Bytes that each has counted, by direction, at the sample before."""
        self._bytes = dict.fromkeys(DIRECTIONS, 0)

    def read(self) -> Iterator[Sample]:
        memory = psutil.virtual_memory()
        yield Sample(vocabulary.CPU_UTILIZATION, psutil.cpu_percent(None) / 100)
        yield Sample(vocabulary.CPU_LOAD, psutil.getloadavg()[0])
        yield Sample(vocabulary.NODE_MEMORY, memory.total - memory.available)
        yield Sample(vocabulary.NODE_MEMORY_LIMIT, memory.total)
        yield from self._network()

    def _network(self) -> Iterator[Sample]:
        """Add up what each interface has counted since the sample before: of one that goes, nothing falls."""
        found = {
            name: (row.bytes_recv, row.bytes_sent)
            for name, row in psutil.net_io_counters(pernic=True).items()
            if name not in LOOPBACK
        }
        for index, direction in enumerate(DIRECTIONS if found else ()):
            self._bytes[direction] += sum(
                max(counts[index] - self._interfaces.get(name, counts)[index], 0) for name, counts in found.items()
            )
            labels = ((vocabulary.NETWORK_DIRECTION, direction),)
            yield Sample(vocabulary.NETWORK_IO, self._bytes[direction], labels)
        self._interfaces = found

    def close(self) -> None:
        """Nothing is open."""


PROBES: Final[tuple[Callable[[], Probe], ...]] = (HostProbe, NvidiaProbe, AscendProbe)


class NodeProbe:
    """All probes together; one that fails takes no other with it."""

    def __init__(self) -> None:
        self._probes = [probe() for probe in PROBES]

    def read(self) -> list[Sample]:
        """Sample. Cost: 0.3 ms, and of each device what ``docs/hardware.md`` says."""
        found: list[Sample] = []
        for probe in self._probes:
            with guard(f"sample {probe.name}"):
                found.extend(probe.read())
        return found

    def close(self) -> None:
        for probe in self._probes:
            with guard(f"close {probe.name}"):
                probe.close()
