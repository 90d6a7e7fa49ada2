"""The wall time of a rank by kind: each container as it is read, then the whole of each attempt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_rl import vocabulary as v
from otel_rl.analysis.goodput import Goodput, Kind
from otel_rl.analysis.intervals import Interval, clip
from otel_rl.journal.read import SpanView
from otel_rl.tables.peers import CallKey

if TYPE_CHECKING:
    from otel_rl.tables.forest import Ints

UPDATE: Final = frozenset((v.TRAIN, v.FORWARD, v.BACKWARD, v.CLIP, v.OPTIMIZER))
NOTHING: Final = Goodput(0, 0, 0, 0, 0)
NO_CALLS: Final[frozenset[CallKey]] = frozenset()
"""One for all of a run's steps: an empty one takes 216 bytes."""


@dataclass(slots=True)
class Bounds:
    """First and last recorded time."""

    begin_ns: int
    end_ns: int

    def widen(self, begin_ns: int, end_ns: int) -> None:
        self.begin_ns, self.end_ns = min(self.begin_ns, begin_ns), max(self.end_ns, end_ns)


@dataclass(slots=True)
class Wall(Bounds):
    """The time of the containers of one rank in one attempt."""

    phases: list[tuple[Interval, Goodput]] = field(default_factory=list)


def skipped(spans: Iterable[SpanView], begin_ns: int) -> Iterator[Interval]:
    """Return what a step did for updates that the optimizer skipped: the update since its last step."""
    update = [span for span in spans if span.name in UPDATE]
    for optimizer in sorted((span for span in update if span.name == v.OPTIMIZER), key=lambda span: span.end_ns):
        if optimizer.attributes.get(v.OPTIMIZER_SKIPPED) is True:
            yield from clip(((span.start_ns, span.end_ns) for span in update), begin_ns, optimizer.end_ns)
        begin_ns = max(begin_ns, optimizer.end_ns)


def skipped_calls(container: SpanView, inside: Iterable[SpanView]) -> frozenset[CallKey]:
    """Return the calls of a step that lie in skipped updates as a whole: waits in them stay wasted."""
    update = [span for span in inside if span.name in UPDATE]
    wasted = set(skipped(update, container.start_ns))
    found: set[CallKey] = set()
    counts: Counter[str] = Counter()
    for span in sorted(update, key=lambda span: span.start_ns) if wasted else ():
        if span.parent_id == container.span_id:
            if (span.start_ns, span.end_ns) in wasted:
                found.add((span.name, counts[span.name]))
            counts[span.name] += 1
    return frozenset(found) if found else NO_CALLS


def moved(parts: Goodput, waits_ns: Mapping[Kind, Ints]) -> Goodput:
    """Count the waits in the collectives of stages as idle, in one window or, as arrays, in many."""
    left: dict[Kind, Ints] = {
        Kind.PRODUCTIVE: parts.productive_ns, Kind.OVERHEAD: parts.overhead_ns, Kind.OTHER: parts.other_ns,
    }  # fmt: skip
    idle_ns: Ints = parts.idle_ns
    for kind, wait_ns in waits_ns.items():
        if kind in left:
            moved_ns = np.minimum(left[kind], wait_ns)
            left[kind], idle_ns = left[kind] - moved_ns, idle_ns + moved_ns
    return Goodput(left[Kind.PRODUCTIVE], left[Kind.OVERHEAD], idle_ns, parts.wasted_ns, left[Kind.OTHER])


def without(parts: Goodput, twice_ns: int) -> Goodput:
    """Subtract what another container of the rank has already, of unknown kind, so that other goes first."""
    left: list[int] = []
    for part in (parts.other_ns, parts.productive_ns, parts.overhead_ns, parts.idle_ns, parts.wasted_ns):
        left.append(max(0, part - twice_ns))
        twice_ns -= part - left[-1]
    other, productive, overhead, idle, wasted = left
    return Goodput(productive, overhead, idle, wasted, other)


def twice(intervals: Iterable[Interval]) -> dict[Interval, int]:
    """Return by how much the containers of a rank overlap earlier ones, ns."""
    found: dict[Interval, int] = {}
    reached = 0
    for begin, end in sorted(intervals):
        if begin < reached:
            found[begin, end] = max(0, min(end, reached) - begin)
        reached = max(reached, end)
    return found
