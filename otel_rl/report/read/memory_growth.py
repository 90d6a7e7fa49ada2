"""How the memory of each rank went from step to step, and the stages in which it rose."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final

from otel_rl.analysis.series.growth import WARMUP
from otel_rl.analysis.stages import Path
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import MemoryKind
from otel_rl.report.read.memory_readings import TraceMemory
from otel_rl.runs.spans import integer

MOST: Final = 0.5
"""A stage is named if it has this share of the rise."""
DEEPER: Final = 0.8
"""A stage inside another is named instead if it has this share of the other's."""

Rises = Sequence[tuple[Path, int]]


@dataclass(slots=True)
class StepMemory:
    """Memory of one kind of one rank in one attempt, over its steps without the warm-up."""

    first: list[tuple[int, int, int, Rises]] = field(default_factory=list)
    """The steps of the warm-up; steps come in any order."""
    times: array[int] = field(default_factory=lambda: array("q"))
    steps: array[int] = field(default_factory=lambda: array("q"))
    bytes: array[int] = field(default_factory=lambda: array("q"))
    """At the end of each."""
    rises: Counter[Path] = field(default_factory=Counter)
    """By how much it rose, or fell, while these stages were open, and none inside the last of them; bytes."""

    def add(self, time_ns: int, step: int, size: int, rises: Rises) -> None:
        self.first.append((time_ns, step, size, rises))
        if len(self.first) > WARMUP:
            self.first.sort(key=itemgetter(0))
            time_ns, step, size, rises = self.first.pop()
            self.times.append(time_ns)
            self.steps.append(step)
            self.bytes.append(size)
            for path, rise in rises:
                self.rises[path] += rise

    def over_steps(self) -> list[tuple[int, int]]:
        """Return number and memory of each step, in order of time."""
        rows = sorted(zip(self.times, self.steps, self.bytes, strict=True))
        return [(step, size) for _, step, size in rows]

    def stage(self) -> tuple[str, float]:
        """Return the innermost stage with most of the rise, and its share; no name if none has most of it."""
        total = within = sum(self.rises.values())
        path: Path = ()
        while within > 0:
            label, rise = max(self._inside(path).items(), key=itemgetter(1), default=("", 0))
            if rise < (DEEPER if path else MOST) * within:
                break
            path, within = (*path, label), rise
        return (path[-1], min(1.0, within / total)) if path else ("", 0.0)

    def _inside(self, path: Path) -> Counter[str]:
        found: Counter[str] = Counter()
        for one, rise in self.rises.items():
            if len(one) > len(path) and one[: len(path)] == path:
                found[one[len(path)]] += rise
        return found


class MemoryGrowth:
    """The memory over the steps of a run. Cost: 24 bytes a step, and a number for each path of stages."""

    def __init__(self) -> None:
        self.ranks: dict[tuple[str, Rank, MemoryKind], StepMemory] = {}

    def add(self, trace: TraceMemory) -> None:
        """Add a step: its memory at the end, and by how much it rose in which stages."""
        whole = next((edge.span for edge in trace.edges if trace.is_whole(edge.span)), None)
        if whole is None or trace.iteration is None:
            return
        for keys in trace.kinds():
            if size := integer(whole.attributes, keys.ends[1]):
                known = self.ranks.setdefault((trace.attempt, trace.rank, keys.kind), StepMemory())
                rises = [(trace.path(stage), rise) for rise, stage in trace.rises(keys)]
                known.add(whole.end_ns, trace.iteration, size, rises)
