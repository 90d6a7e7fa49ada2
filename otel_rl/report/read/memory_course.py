"""How the memory of each process went: its peaks, its course from step to step, and the stages in which it rose."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Final, NamedTuple

from otel_rl import vocabulary as v
from otel_rl.analysis.series.growth import WARMUP
from otel_rl.analysis.stages import Path
from otel_rl.journal.read import SpanView
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import MemoryKind, MemoryPeak
from otel_rl.report.read.memory_readings import Edge, MemoryKeys, TraceMemory
from otel_rl.runs.spans import integer, is_container

SLACK_SHARE: Final = 0.01
"""The kernel counts pages late: a reading of the host may lie this much above an exact peak."""
RAISE_SHARE: Final = 0.001
"""A stage raised the memory when it went this much above all before it; a few pages are noise."""


class Raise(NamedTuple):
    """A moment at which memory was higher than before."""

    time_ns: int
    bytes: int
    stage: str
    """In which it rose; empty if unknown, since it was so high at the first reading."""
    iteration: int | None


class MemoryPeaks:
    """The highest values over the spans of a run."""

    def __init__(self) -> None:
        self._peaks: dict[tuple[Rank, MemoryKind], MemoryPeak] = {}
        self._raised: defaultdict[tuple[Rank, MemoryKind], list[Raise]] = defaultdict(list)

    def add(self, trace: TraceMemory) -> None:
        for keys in trace.kinds():
            for span in trace.spans:
                self._add_span(span, keys, trace)
            self.add_raises(trace.rank, keys.kind, _raises(keys, trace))

    def add_raises(self, rank: Rank, kind: MemoryKind, raises: Iterable[Raise]) -> None:
        self._raised[rank, kind] += raises

    def may_exceed(self, size: int, rank: Rank, kind: MemoryKind) -> bool:
        """Return whether a reading may be the highest so far; most are not."""
        seen = self._peaks.get((rank, kind))
        return seen is None or size * (1 + _slack(kind)) >= seen.bytes

    def reach(self, peak: MemoryPeak) -> None:
        """Keep a reading if it is the highest so far."""
        key = Rank(peak.role, peak.rank), peak.kind
        if peak.bytes and _is_higher(peak.bytes, peak.is_exact, self._peaks.get(key), peak.kind):
            self._peaks[key] = peak

    def rows(self) -> list[MemoryPeak]:
        """List the peaks by rank; each names the stage that last raised it, or the span of the peak if none did."""
        found: list[MemoryPeak] = []
        for key, peak in sorted(self._peaks.items()):
            last = _last(sorted(self._raised[key]))
            found.append(peak if last is None else replace(peak, stage=last.stage, iteration=last.iteration))
        return found

    def _add_span(self, span: SpanView, keys: MemoryKeys, trace: TraceMemory) -> None:
        own = integer(span.attributes, keys.peak)
        size = max(own, integer(span.attributes, keys.ends[0]), integer(span.attributes, keys.ends[1]))
        if self.may_exceed(size, trace.rank, keys.kind):
            self.reach(
                MemoryPeak(
                    role=trace.rank.role,
                    rank=trace.rank.rank,
                    kind=keys.kind,
                    bytes=size,
                    is_exact=own >= size and span.attributes.get(keys.exact) is True,
                    stage=trace.label(span),
                    iteration=trace.iteration,
                )
            )


def _raises(keys: MemoryKeys, trace: TraceMemory) -> list[Raise]:
    """Find where memory rose above all that the trace says before; of rises by a few pages the last is kept."""
    marks: list[Raise] = []
    pages: list[Raise] = []
    highest = 0
    for edge in trace.edges:
        size, is_peak = _reading(edge, keys)
        if size <= highest:
            continue
        highest, stage = size, _raised_by(edge, trace, is_peak=is_peak)
        if not marks and not edge.is_end:
            stage = ""
        elif not stage:
            stage = marks[-1].stage if marks and marks[-1].stage else v.LOOP
        found = Raise(edge.time_ns, size, stage, trace.iteration)
        if not marks or size > marks[-1].bytes * (1 + RAISE_SHARE):
            marks.append(found)
            pages = []
        else:
            pages = [found]
    return marks + pages


def _reading(edge: Edge, keys: MemoryKeys) -> tuple[int, bool]:
    """Return the memory at an edge, and whether it is the peak of a stage, which was reached before its end."""
    attributes = edge.span.attributes
    size, own = integer(attributes, keys.ends[edge.is_end]), integer(attributes, keys.peak) if edge.is_end else 0
    # what a process has from the program before it, after an exec, is in the peak of a container that is not exact
    is_peak = own > size and (attributes.get(keys.exact) is True or not is_container(edge.span.name))
    return own if is_peak else size, is_peak


def _raised_by(edge: Edge, trace: TraceMemory, *, is_peak: bool) -> str:
    """Return the stage in which memory came to a reading; none if it was between two readings."""
    if is_peak:
        return "" if trace.is_whole(edge.span) else trace.label(edge.span)
    return trace.label(trace.open_before(edge))


def _last(raises: Iterable[Raise]) -> Raise | None:
    """Return the last that rose above all before it, with a stage."""
    highest, last = 0.0, None
    for one in raises:
        if one.bytes > highest * (1 + RAISE_SHARE):
            highest, last = one.bytes, one if one.stage or last is None else last
    return last if last is not None and last.stage else None


def _is_higher(size: int, is_exact: bool, seen: MemoryPeak | None, kind: MemoryKind) -> bool:
    """Compare with the peak so far; an exact one gives way to a reading only beyond the slack."""
    if seen is None or is_exact == seen.is_exact:
        return seen is None or size > seen.bytes
    slack = 1 + _slack(kind)
    return size * slack >= seen.bytes if is_exact else size > seen.bytes * slack


def _slack(kind: MemoryKind) -> float:
    return SLACK_SHARE if kind == "host rss" else 0.0


NAMED_SHARE: Final = 0.5
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
        again = next((one for one in self.first if one[1] == step), None)
        if again is not None:  # of a process that may have several traces in a step
            self.first.remove(again)
            time_ns, size = max((time_ns, size), (again[0], again[2]))
            rises = [*again[3], *rises]
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
        """Return number and memory of each step, in order of time; of several readings of a step the last."""
        rows = sorted(zip(self.times, self.steps, self.bytes, strict=True))
        nexts = (*(step for _, step, _ in rows[1:]), None)
        return [(step, size) for (_, step, size), following in zip(rows, nexts, strict=True) if step != following]

    def stage(self) -> tuple[str, float]:
        """Return the innermost stage with most of the rise, and its share; no name if none has most of it."""
        total = within = sum(self.rises.values())
        path: Path = ()
        while within > 0:
            label, rise = max(self._inside(path).items(), key=itemgetter(1), default=("", 0))
            if rise < (DEEPER if path else NAMED_SHARE) * within:
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
    """The memory over the steps of a run. Cost: 24 bytes a step of a process, and a number for each path of stages."""

    def __init__(self) -> None:
        self.ranks: dict[tuple[str, Rank, MemoryKind], StepMemory] = {}
        """The rows of all processes, with steps of their own or not."""
        self._steps: dict[bytes, int] = {}
        """By trace."""
        self._workers: list[tuple[bytes, tuple[str, Rank, MemoryKind], int, int, Rises]] = []
        """What processes without a container did in a trace whose step is not known yet."""

    def add(self, trace: TraceMemory, step: int | None) -> None:
        """Add a step: its memory at the end, and by how much it rose in which stages.

        Args:
            trace: of a rank its step; of another process what it did for one.
            step: in which that was; None if it is the one of the trace.
        """
        whole = next((edge.span for edge in trace.edges if trace.is_whole(edge.span)), None)
        if step is not None and whole is not None:
            self.know_step(whole.trace_id, step)
        elif trace.has_container:
            return
        for keys in trace.kinds():
            ends = [one.span for one in trace.edges if one.is_end and keys.ends[1] in one.span.attributes]
            last = whole or next(reversed(ends), None)
            if last is not None and (size := integer(last.attributes, keys.ends[1])):
                rises = [(trace.path(stage), rise) for rise, stage in trace.rises(keys)]
                key = trace.attempt, trace.rank, keys.kind
                if step is None:
                    self._workers.append((last.trace_id, key, last.end_ns, size, rises))
                else:
                    self.ranks.setdefault(key, StepMemory()).add(last.end_ns, step, size, rises)

    def know_step(self, trace_id: bytes, step: int) -> None:
        self._steps[trace_id] = step

    def finish(self) -> None:
        """Place what processes did whose traces were read before the steps that these are."""
        for trace_id, key, end_ns, size, rises in self._workers:
            step = self._steps.get(trace_id)
            if step is not None:
                self.ranks.setdefault(key, StepMemory()).add(end_ns, step, size, rises)
        self._workers.clear()
