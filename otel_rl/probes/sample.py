"""What a probe of the node gives, and what a probe is: one for each vendor of devices, and one for the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

SampleLabels = tuple[tuple[str, str], ...]


class Sample(NamedTuple):
    """One number."""

    name: str
    value: int | float
    labels: SampleLabels = ()


class Probe(Protocol):
    """One kind of hardware of this node. A vendor is a class like this and a line in ``node.PROBES``."""

    name: str

    def read(self) -> Iterator[Sample]:
        """Sample everything that is there now; nothing where there is no such hardware, or it does not answer."""

    def close(self) -> None:
        """Return back what was opened; ``read`` opens it again."""


class Totals:
    """Counters as they have grown since they were first read, whatever the hardware counted before."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, SampleLabels], tuple[float, float]] = {}

    def sample(self, name: str, value: float, labels: SampleLabels) -> Sample:
        """Add what a counter of the hardware shows; one that fell has begun anew, as after a driver's restart."""
        before, total = self._known.get((name, labels), (value, 0))
        total += value - before if value >= before else value
        self._known[name, labels] = value, total
        return Sample(name, total, labels)
