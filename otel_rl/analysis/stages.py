"""The stages of one rank in one step: who is inside whom, own time, coverage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple

from otel_rl import vocabulary as v
from otel_rl.analysis.goodput import Kind, kind_of
from otel_rl.analysis.intervals import clip, covered

Path = tuple[str, ...]
"""Labels from the outermost stage to this one."""


@dataclass(frozen=True, slots=True)
class Comm:
    """Collectives: how many, and the time in them."""

    count: int
    time_ns: int


NO_COMM: Final = Comm(0, 0)
LOADING: Final = f"{v.IDLE} data"
"""The one wait that a rank may be slow in: its own loader is."""


@dataclass(frozen=True, slots=True)
class Idle:
    """Waits inside a stage."""

    comm_ns: int
    """In collectives inside of them."""
    time_ns: int
    """Without these."""
    loading_ns: int
    """Of that, for data."""


NO_IDLE: Final = Idle(0, 0, 0)


class RankSpan(NamedTuple):
    """One span of a rank as arithmetic sees it; a tuple, since a run has millions of them."""

    key: bytes
    """Span id."""
    parent: bytes
    label: str
    begin_ns: int
    end_ns: int
    is_comm: bool = False
    """A collective: it belongs to the stage around it and is no row of its own below one."""
    comm: Comm | None = None
    """Collectives directly inside, as its writer summed them up; None where the writer did not."""
    is_hidden: bool = False
    """Collectives run inside that nobody could see."""
    is_host_clock: bool = False
    """The duration is that of a launch: the device works on after it."""
    device_ns: int | None = None
    """How long the device took, where it was timed."""

    @property
    def duration_ns(self) -> int:
        """End minus begin, never negative."""
        return max(0, self.end_ns - self.begin_ns)

    def within(self, container: RankSpan) -> RankSpan:
        """Give the part of it that lies in a container, which a stage of a task or another thread may outlive."""
        if container.begin_ns <= self.begin_ns and self.end_ns <= container.end_ns:
            return self
        begin_ns = max(self.begin_ns, container.begin_ns)
        return self._replace(begin_ns=begin_ns, end_ns=max(begin_ns, min(self.end_ns, container.end_ns)))


class StageTimes(NamedTuple):
    """One stage on one rank in one step; a tuple, since a run has millions of them."""

    durations_ns: tuple[int, ...]
    """Of its calls, whole."""
    busy_ns: int
    """Union of its calls inside the step: overlapping calls count once."""
    own_ns: int
    """Sum of its calls inside the step without the collectives and the waits, other than for data, inside of them."""
    comm: Comm
    is_hidden: bool
    is_host_clock: bool
    is_device_clock: bool = False
    """The device timed every call, and these are its times, of which the waits for collectives are a part."""


class SpanTree:
    """Who is inside whom among the spans of one trace and process."""

    def __init__(self, pieces: Iterable[RankSpan]) -> None:
        self._children: defaultdict[bytes, list[RankSpan]] = defaultdict(list)
        for piece in pieces:
            self._children[piece.parent].append(piece)

    def directly(self, key: bytes) -> list[RankSpan]:
        """List what lies directly inside a span, in order of time."""
        return sorted(self._children.get(key, ()), key=lambda piece: piece.begin_ns)

    def below(self, key: bytes) -> list[RankSpan]:
        """List everything inside a span, directly or not, each span once."""
        found: list[RankSpan] = []
        if key not in self._children:
            return found
        seen = {key}
        waiting = [key]
        while waiting:
            for child in self._children.get(waiting.pop(), ()):
                if child.key not in seen:
                    seen.add(child.key)
                    found.append(child)
                    waiting.append(child.key)
        return found

    def covered_ns(self, container: RankSpan) -> int:
        """Say how much time of a container lies under a stage or a collective."""
        inside = [(piece.begin_ns, piece.end_ns) for piece in self.below(container.key)]
        return covered(clip(inside, container.begin_ns, container.end_ns))

    def comm(self, piece: RankSpan) -> Comm:
        """Add up the collectives inside a stage, in nested stages too; a collective is all collective."""
        if piece.is_comm:
            return Comm(1, piece.duration_ns)
        if piece.key not in self._children:  # as most are
            own = piece.comm or NO_COMM
            return own if own.time_ns <= piece.duration_ns else Comm(own.count, piece.duration_ns)
        nested = [child for child in self.below(piece.key) if not child.is_comm]
        if not nested and piece.comm is not None and piece.comm.time_ns <= piece.duration_ns:
            return piece.comm
        found = [self.direct_comm(stage) for stage in (piece, *nested)]
        return Comm(sum(one.count for one in found), min(piece.duration_ns, sum(one.time_ns for one in found)))

    def direct_comm(self, piece: RankSpan) -> Comm:
        """Add up the collectives directly inside a stage or a container; few of them may be spans."""
        if piece.comm is not None:
            return piece.comm
        spans = [(child.begin_ns, child.end_ns) for child in self._children.get(piece.key, ()) if child.is_comm]
        return Comm(len(spans), covered(spans))

    def waits(self, piece: RankSpan, inside: Iterable[RankSpan]) -> list[RankSpan]:
        """Find the waits inside a stage that is none itself, those inside of each other once.

        Args:
            piece: the stage.
            inside: everything inside of it, from ``below``.
        """
        if kind_of(piece.label) is Kind.IDLE:
            return []
        found = [one for one in inside if kind_of(one.label) is Kind.IDLE]
        nested = {child.key for one in found for child in self.below(one.key)}
        return [one for one in found if one.key not in nested]

    def idle(self, piece: RankSpan, waits: Sequence[RankSpan]) -> Idle:
        """Add up the waits inside a stage; those of several threads fit into it.

        Args:
            piece: the stage.
            waits: from ``waits``, as far as they lie in it.
        """
        if not waits:
            return NO_IDLE
        comm_ns = [self.comm(wait).time_ns for wait in waits]
        alone_ns = [wait.duration_ns - time_ns for wait, time_ns in zip(waits, comm_ns, strict=True)]
        loading_ns = sum(time_ns for wait, time_ns in zip(waits, alone_ns, strict=True) if wait.label == LOADING)
        most_ns = max(0, piece.duration_ns - self.comm(piece).time_ns)
        return Idle(sum(comm_ns), min(sum(alone_ns), most_ns), min(loading_ns, most_ns))

    def slices(self, container: RankSpan, depth: int = 2) -> dict[Path, StageTimes]:
        """Fold the stages in a container by their labels' path, ``depth`` levels deep; collectives at the top only."""
        groups: defaultdict[Path, list[RankSpan]] = defaultdict(list)
        level: list[tuple[Path, RankSpan]] = [((span.label,), span) for span in self._children.get(container.key, ())]
        while level:
            for path, piece in level:
                groups[path].append(piece)
            level = [
                ((*path, child.label), child)
                for path, piece in level
                if len(path) < depth and not piece.is_comm
                for child in self._children.get(piece.key, ())
                if not child.is_comm
            ]
        return {path: self._fold(pieces, container) for path, pieces in groups.items()}

    def _alone(self, piece: RankSpan, part: RankSpan) -> StageTimes:
        """Fold one call with nothing inside, as most stages of a step are."""
        comm, time_ns = self.comm(part), part.duration_ns
        return StageTimes((piece.duration_ns,), time_ns, time_ns - comm.time_ns, comm, piece.is_hidden, False)

    def _fold(self, pieces: Sequence[RankSpan], container: RankSpan) -> StageTimes:
        parts = [piece.within(container) for piece in pieces]
        if len(pieces) == 1 and pieces[0].key not in self._children and not pieces[0].is_host_clock:
            return self._alone(pieces[0], parts[0])
        comm = [self.comm(part) for part in parts]
        comm_ns = sum(one.time_ns for one in comm)
        below = [self.below(piece.key) for piece in pieces]
        inside = [*pieces, *chain.from_iterable(below)]
        is_hidden = any(piece.is_hidden for piece in inside)
        count = sum(one.count for one in comm)
        on_device = [piece.device_ns for piece in pieces if piece.is_host_clock and piece.device_ns is not None]
        if len(on_device) == len(pieces):
            total_ns, within = sum(on_device), Comm(count, comm_ns)
            return StageTimes(tuple(on_device), total_ns, total_ns, within, is_hidden or count > 0, False, True)
        idle = [
            self.idle(part, [one.within(container) for one in self.waits(piece, children)])
            for piece, part, children in zip(pieces, parts, below, strict=True)
        ]
        waited_ns = sum(one.time_ns - one.loading_ns for one in idle)
        return StageTimes(
            durations_ns=tuple(piece.duration_ns for piece in pieces),
            busy_ns=covered((part.begin_ns, part.end_ns) for part in parts),
            own_ns=sum(part.duration_ns for part in parts) - comm_ns - waited_ns,
            comm=Comm(count, comm_ns),
            is_hidden=is_hidden,
            is_host_clock=any(piece.is_host_clock for piece in inside),
        )
