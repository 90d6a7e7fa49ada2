"""The stages of one rank in one step: who is inside whom, own time, coverage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Final, NamedTuple

from otel_rl import vocabulary as v
from otel_rl.analysis.goodput import ACTIVE, ACTIVITIES, COMM, IDLE, INSEPARABLE, KIND_OF_STAGE, NO_STAGE, Kind, kind_of
from otel_rl.analysis.intervals import Interval, clip, common, covered, merge, partition

Path = tuple[str, ...]
"""Labels from the outermost stage to this one."""


@dataclass(frozen=True, slots=True)
class Comm:
    """Collectives: how many, and the time in them."""

    count: int
    time_ns: int


NO_COMM: Final = Comm(0, 0)
LOADING: Final = f"{v.IDLE} data"
"""The one wait that counts as own time: the rank's own loader is slow."""


@dataclass(frozen=True, slots=True)
class Idle:
    """Waits inside a stage."""

    comm_ns: int
    time_ns: int
    loading_ns: int


NO_IDLE: Final = Idle(0, 0, 0)


class RankSpan(NamedTuple):
    """One span of a rank as arithmetic sees it; a tuple, since a run has millions of them."""

    key: bytes
    parent: bytes
    label: str
    begin_ns: int
    end_ns: int
    is_comm: bool = False
    """A collective belongs to its stage; below one it is not listed by itself."""
    comm: Comm | None = None
    """Collectives directly inside, if its writer summed them up."""
    is_hidden: bool = False
    """There are collectives inside that no hook saw."""
    is_host_clock: bool = False
    """The duration is that of a launch: the device goes on working after it."""
    device_ns: int | None = None

    @property
    def duration_ns(self) -> int:
        return max(0, self.end_ns - self.begin_ns)

    def within(self, container: RankSpan) -> RankSpan:
        """Return the part that lies in a container; a stage of another thread or task may reach out of it."""
        if container.begin_ns <= self.begin_ns and self.end_ns <= container.end_ns:
            return self
        begin_ns = max(self.begin_ns, container.begin_ns)
        return self._replace(begin_ns=begin_ns, end_ns=max(begin_ns, min(self.end_ns, container.end_ns)))


class StageTimes(NamedTuple):
    """One stage on one rank in one step; a tuple, since a run has millions of them."""

    durations_ns: tuple[int, ...]
    busy_ns: int
    """The union of its calls inside the step: overlapping calls count once."""
    own_ns: int
    """The same without collectives and waits, except waits for data."""
    comm: Comm
    is_hidden: bool
    is_host_clock: bool
    is_device_clock: bool = False
    """The device timed every call, and these are its times; waits for collectives are a part of them."""


@lru_cache(maxsize=4096)
def is_apart(outer: str, inner: str) -> bool:
    """Return whether a stage is of another kind than the one around it, as an evaluation inside a log is."""
    around, name = (stage.partition(" ")[0] for stage in (outer, inner))
    is_known = name in KIND_OF_STAGE and name.split(".")[:2] != around.split(".")[:2]
    is_around = around in (v.LOG, v.REWARD) or around not in KIND_OF_STAGE
    return is_known and around != v.EVALUATE and (is_around or name in (v.EVALUATE, v.CHECKPOINT, v.SYNC))


class _Activities:
    """What some spans and all that is inside them do, by ``ACTIVITIES``."""

    def __init__(self) -> None:
        self.layers: list[list[Interval]] = [[] for _ in ACTIVITIES]
        self.unplaced_ns = [0] * len(ACTIVITIES)
        """Time in collectives that are no spans: it is known in which stage, and not when."""
        self.collectives = 0


class SpanTree:
    """Who is inside whom among the spans of one trace and process."""

    def __init__(self, spans: Iterable[RankSpan]) -> None:
        self._children: defaultdict[bytes, list[RankSpan]] = defaultdict(list)
        for span in spans:
            self._children[span.parent].append(span)

    def directly(self, key: bytes) -> list[RankSpan]:
        """Return what lies directly inside a span, in order of time."""
        return sorted(self._children.get(key, ()), key=lambda span: span.begin_ns)

    def below(self, key: bytes) -> list[RankSpan]:
        """Return everything inside a span, directly or not, each span once."""
        found: list[RankSpan] = []
        if key not in self._children:
            return found
        seen = {key}
        pending = [key]
        while pending:
            for child in self._children.get(pending.pop(), ()):
                if child.key not in seen:
                    seen.add(child.key)
                    found.append(child)
                    pending.append(child.key)
        return found

    def covered_ns(self, container: RankSpan) -> int:
        """Return how much time of a container lies under a stage or a collective."""
        inside = [(span.begin_ns, span.end_ns) for span in self.below(container.key)]
        return covered(clip(inside, container.begin_ns, container.end_ns))

    def comm(self, span: RankSpan) -> Comm:
        """Add up the collectives inside a stage and its nested stages."""
        if span.is_comm:
            return Comm(1, span.duration_ns)
        if span.key not in self._children:  # as most are
            own = span.comm or NO_COMM
            return own if own.time_ns <= span.duration_ns else Comm(own.count, span.duration_ns)
        nested = [child for child in self.below(span.key) if not child.is_comm]
        found = [self.direct_comm(stage) for stage in (span, *nested)]
        return Comm(sum(one.count for one in found), min(span.duration_ns, sum(one.time_ns for one in found)))

    def direct_comm(self, span: RankSpan) -> Comm:
        """Add up the collectives directly inside a stage or a container; few of them may be spans."""
        if span.comm is not None:
            return span.comm
        times = [(child.begin_ns, child.end_ns) for child in self._children.get(span.key, ()) if child.is_comm]
        return Comm(len(times), covered(times))

    def waits(self, span: RankSpan, inside: Iterable[RankSpan]) -> list[RankSpan]:
        """Return the waits among what ``below`` found inside a stage, nested ones once; none if it is a wait itself."""
        if kind_of(span.label) is Kind.IDLE:
            return []
        found = [one for one in inside if kind_of(one.label) is Kind.IDLE]
        nested = {child.key for one in found for child in self.below(one.key)}
        return [one for one in found if one.key not in nested]

    def idle(self, span: RankSpan, waits: Sequence[RankSpan]) -> Idle:
        """Add up the waits inside a stage, as far as they lie in it; those of several threads never exceed it."""
        if not waits:
            return NO_IDLE
        comm_ns = [self.comm(wait).time_ns for wait in waits]
        alone_ns = [wait.duration_ns - time_ns for wait, time_ns in zip(waits, comm_ns, strict=True)]
        loading_ns = sum(time_ns for wait, time_ns in zip(waits, alone_ns, strict=True) if wait.label == LOADING)
        most_ns = max(0, span.duration_ns - self.comm(span).time_ns)
        return Idle(sum(comm_ns), min(sum(alone_ns), most_ns), min(loading_ns, most_ns))

    def activities(self, container: RankSpan) -> tuple[int, ...]:
        """Return what a rank does in a container by ``ACTIVITIES``, ns: each moment counts once."""
        found, inside = _Activities(), self.below(container.key)
        self._add(inside, [one for one in inside if kind_of(one.label) is Kind.IDLE], found)
        self._add_comm(container, NO_STAGE, found)
        parts_ns = list(partition(found.layers[:NO_STAGE], container.begin_ns, container.end_ns))
        for place in (INSEPARABLE, ACTIVE, NO_STAGE):  # in a wait a collective is idle time already
            moved_ns = min(parts_ns[place], found.unplaced_ns[place])
            parts_ns[place] -= moved_ns
            parts_ns[COMM] += moved_ns
        return tuple(parts_ns)

    def _add(self, spans: Iterable[RankSpan], waits: Sequence[RankSpan], found: _Activities) -> None:
        """Add spans, some of which are waits."""
        idle = {one.key for one in waits}
        in_idle = {child.key for wait in waits for child in self.below(wait.key)}
        for span in spans:
            place = COMM if span.is_comm else IDLE if span.key in idle else INSEPARABLE if span.is_hidden else ACTIVE
            found.layers[place].append((span.begin_ns, span.end_ns))
            if not span.is_comm:
                self._add_comm(span, IDLE if span.key in in_idle else place, found)

    def _add_comm(self, span: RankSpan, place: int, found: _Activities) -> None:
        """Count the collectives directly in a stage, few of which may be spans."""
        children = self._children.get(span.key, ())
        seen = [(child.begin_ns, child.end_ns) for child in children if child.is_comm]
        found.collectives += len(seen) if span.comm is None else span.comm.count
        if span.comm is not None and span.comm.time_ns:
            found.unplaced_ns[place] += max(0, span.comm.time_ns - covered(seen))

    def slices(self, container: RankSpan, depth: int = 2) -> dict[Path, StageTimes]:
        """Fold the stages in a container by their labels' path, ``depth`` levels deep; collectives at the top only.

        What is of another kind than the outermost stage has a path right below that, however deep it lies.
        """
        groups: defaultdict[Path, list[RankSpan]] = defaultdict(list)
        level: list[tuple[Path, RankSpan]] = [((span.label,), span) for span in self._children.get(container.key, ())]
        while level:
            for path, span in level:
                groups[path].append(span)
            level = [one for path, span in level if not span.is_comm for one in self._inside(path, span, depth)]
        return {path: self._fold(spans, container) for path, spans in groups.items()}

    def _inside(self, path: Path, span: RankSpan, depth: int) -> Iterator[tuple[Path, RankSpan]]:
        """Return what is directly in a stage; at the last level what is of another kind than the outermost one."""
        pending = self._stages(span)
        if len(path) < depth:
            yield from (((*path, child.label), child) for child in pending)
            return
        seen = {span.key}
        while len(path) > 1 and pending and path[0] != v.EVALUATE and not is_apart(path[0], path[-1]):
            child = pending.pop()
            if child.key not in seen:
                seen.add(child.key)
                if is_apart(path[0], child.label):
                    yield (path[0], child.label), child
                else:
                    pending += self._stages(child)

    def _stages(self, span: RankSpan) -> list[RankSpan]:
        return [child for child in self._children.get(span.key, ()) if not child.is_comm]

    def _fold(self, spans: Sequence[RankSpan], container: RankSpan) -> StageTimes:
        parts = [span.within(container) for span in spans]
        if len(spans) == 1 and spans[0].key not in self._children and not spans[0].is_host_clock:
            span, within_comm, time_ns = spans[0], self.comm(parts[0]), parts[0].duration_ns  # as most stages are
            own_ns = time_ns - within_comm.time_ns
            return StageTimes((span.duration_ns,), time_ns, own_ns, within_comm, span.is_hidden, False)
        busy = merge((part.begin_ns, part.end_ns) for part in parts)
        below = [self.below(span.key) for span in spans]
        comm, own_ns = self._own(spans, below, busy)
        inside = [*spans, *chain.from_iterable(below)]
        is_hidden = any(span.is_hidden for span in inside)
        on_device = [span.device_ns for span in spans if span.is_host_clock and span.device_ns is not None]
        if len(on_device) == len(spans):
            total_ns = sum(on_device)
            return StageTimes(tuple(on_device), total_ns, total_ns, comm, is_hidden or comm.count > 0, False, True)
        return StageTimes(
            durations_ns=tuple(span.duration_ns for span in spans),
            busy_ns=covered(busy),
            own_ns=own_ns,
            comm=comm,
            is_hidden=is_hidden,
            is_host_clock=any(span.is_host_clock for span in inside),
        )

    def _own(
        self, spans: Sequence[RankSpan], below: Sequence[Sequence[RankSpan]], busy: Sequence[Interval]
    ) -> tuple[Comm, int]:
        """Return the collectives of a stage, and its own time: each moment of its calls counts once."""
        found = _Activities()
        for span, inside in zip(spans, below, strict=True):
            is_wait = kind_of(span.label) is Kind.IDLE
            waits = [one for one in inside if kind_of(one.label) is Kind.IDLE and one.label != LOADING and not is_wait]
            self._add((span, *inside), waits, found)
            found.collectives += span.is_comm
        comm, waiting = (common(merge(found.layers[place]), busy) for place in (COMM, IDLE))
        window = (busy[0][0], busy[-1][1]) if busy else (0, 0)
        comm_ns, waiting_ns, own_ns, _ = partition([comm, waiting, busy], *window)
        in_waits_ns = min(waiting_ns, found.unplaced_ns[IDLE])
        in_own_ns = min(own_ns, found.unplaced_ns[INSEPARABLE] + found.unplaced_ns[ACTIVE])
        return Comm(found.collectives, comm_ns + in_waits_ns + in_own_ns), own_ns - in_own_ns
