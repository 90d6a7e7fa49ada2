"""Who waits for whom: from a stage that takes too long to what it waits for, until something waits for nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from otel_rl import vocabulary as v
from otel_rl.stalls.bounds import UNKNOWN_S, Bound, StallBounds
from otel_rl.stalls.members import Leaf, Process

Cause = Literal["stage", "collective", "silent", "stopped", "dead", "unseen"]


@dataclass(frozen=True)
class Link:
    """A process that waits, or the last one, for which all others wait."""

    process: Process
    leaf: Leaf
    bound: Bound

    @property
    def age_s(self) -> float:
        return self.process.age_s(self.leaf)

    @property
    def is_over(self) -> bool:
        """Whether nothing has happened in it for longer than it may take."""
        return self.age_s > self.bound.seconds

    @property
    def key(self) -> tuple[str, int]:
        """What it is known by: its process, and when its stage began."""
        return self.process.writer, self.leaf.began_ns


@dataclass(frozen=True)
class Stall:
    """What holds a run up at the moment of a look."""

    last: Link
    cause: Cause
    waiting: tuple[Link, ...] = ()
    """Processes that wait for it, also through others."""
    unseen: int | None = None
    """The rank that is waited for and has no status page here."""
    together: tuple[Link, ...] = ()
    """All ranks that are inside the collective that does not end."""


@dataclass
class Situation:
    """All processes of an attempt at one moment."""

    processes: Sequence[Process]
    bounds: StallBounds
    _found: dict[tuple[str, int], Stall] = field(default_factory=dict)

    @cached_property
    def links(self) -> list[Link]:
        return [
            Link(process, leaf, process.bound(leaf, self.bounds))
            for process in self.processes
            for leaf in process.leaves
        ]

    @cached_property
    def _by_rank(self) -> dict[tuple[str, int], Process]:
        return {(one.page.role, one.page.rank): one for one in sorted(self.processes, key=_started)}

    @cached_property
    def _called(self) -> dict[str, list[Process]]:
        """Processes that work for a stage of another one, by its span id."""
        called: defaultdict[str, list[Process]] = defaultdict(list)
        for process in self.processes:
            for parent in {row["parent"] for row in process.page.open}:
                called[parent].append(process)
        return called

    def stalls(self) -> list[Stall]:
        """Return what holds the attempt up, each with all who wait for it."""
        waiting: defaultdict[tuple[str, int], dict[tuple[str, int], Link]] = defaultdict(dict)
        found: dict[tuple[str, int], Stall] = {}
        for link in self.links:
            if not link.is_over or link.process.state == "dead":
                continue
            path, stall = self._follow(link)
            if stall is not None:
                found.setdefault(stall.last.key, stall)
                named = {stall.last.key, *(one.key for one in stall.together)}
                waiting[stall.last.key].update({one.key: one for one in path if one.key not in named})
        self._absorb(found, waiting)
        return [
            Stall(one.last, one.cause, tuple(waiting[key].values()), one.unseen, one.together)
            for key, one in found.items()
        ]

    def _follow(self, link: Link) -> tuple[list[Link], Stall | None]:
        """Follow who waits for whom; return the way and what is at its end, None if that goes on as it should."""
        path = [link]
        while True:
            last = path[-1]
            if last.process.state == "traced":
                return path, None
            if last.process.is_quiet:
                is_stuck = last.is_over or last.process.state == "dead"
                return path, Stall(last, _quiet(last.process)) if is_stuck else None
            if last.leaf.name == v.COMM:
                following, stall = self._awaited(last)
            else:
                following, stall = self._works_for(last), None
            if following is None:
                return path, stall if last.leaf.name == v.COMM else self._own(last)
            keys = [one.key for one in path]
            if following.key in keys:  # they wait for each other
                first = max(path[keys.index(following.key) :], key=_overdue)
                return path, Stall(first, "stage") if first.is_over else None
            path.append(following)

    def _own(self, last: Link) -> Stall | None:
        """Return the stall of a stage that waits for nothing that is seen.

        A driver, and what waits for work, has stalled only if nothing else goes on: what it waits for may take long.
        """
        if not last.is_over:
            return None
        if last.process.page.process == "driver" or last.leaf.name == v.IDLE:
            for other in self.processes:
                quiet_s = max(0, other.now_ns - other.moved_ns()) / 1e9
                if other is not last.process and other.state == "working" and quiet_s < last.bound.seconds:
                    return None
        return Stall(last, "stage")

    def _awaited(self, link: Link) -> tuple[Link | None, Stall | None]:
        """Return the rank that a collective waits for; else the stall, if the collective itself does not end."""
        page, leaf = link.process.page, link.leaf
        group, sequence = leaf.get(v.COMM_GROUP), leaf.get(v.COMM_SEQUENCE)
        members = page.groups.get(group or "", (0, ()))[1] or tuple(range(page.world_size))
        inside: list[Link] = []
        missing: list[Link] = []
        unseen: list[int] = []
        for rank in members:
            process = self._by_rank.get((page.role, rank))
            if process is None:
                unseen.append(rank)
                continue
            links = [one for one in self.links if one.process is process] or [self._idle(process)]
            there = [one for one in links if one.leaf.get(v.COMM_GROUP) == group and not process.is_quiet]
            same = [one for one in there if one.leaf.name == v.COMM and one.leaf.get(v.COMM_SEQUENCE) == sequence]
            if same:
                inside += same
            else:
                missing += links
        if missing:
            return max(missing, key=_blame), None
        if any(one.process.state == "traced" for one in inside):
            return None, None
        first = inside[0] if inside else link  # it stands for all: that is one stall
        if unseen:
            late = first.is_over and first.age_s > UNKNOWN_S
            return None, Stall(first, "unseen", unseen=unseen[0]) if late else None
        return None, Stall(first, "collective", together=tuple(inside)) if first.is_over else None

    def _idle(self, process: Process) -> Link:
        """Return what stands for a process that is in no stage that has been open for a second."""
        leaf = Leaf("", "", process.page.began_ns, process.page.began_ns)
        return Link(process, leaf, process.bound(leaf, self.bounds))

    def _works_for(self, link: Link) -> Link | None:
        """Return what another process does for a stage; of several the one that is to blame most."""
        processes = self._called.get(link.leaf.span_id, []) if link.leaf.span_id else []
        links = [one for one in self.links if one.process in processes and one.process is not link.process]
        return max(links, key=_blame, default=None)

    def _absorb(
        self,
        found: dict[tuple[str, int], Stall],
        waiting: defaultdict[tuple[str, int], dict[tuple[str, int], Link]],
    ) -> None:
        """Let what only waits for work wait for the stall that is there, or else for the one that waits longest."""
        idle = [key for key, one in found.items() if _only_waits(one)]
        others = [key for key in found if key not in idle]
        first = max(others or idle, key=lambda one: (found[one].last.age_s, one), default=None)
        for key in idle:
            if first is not None and key != first:
                waiting[first].update(waiting.pop(key, {}) | {key: found.pop(key).last})


def _only_waits(stall: Stall) -> bool:
    return stall.cause == "stage" and (
        stall.last.process.page.process == "driver" or stall.last.leaf.name == v.IDLE or stall.last.leaf.is_container
    )


def _overdue(link: Link) -> tuple[float, tuple[str, int]]:
    return link.age_s - link.bound.seconds, link.key


def _blame(link: Link) -> tuple[Any, ...]:
    return link.process.state == "dead", link.is_over, link.process.is_quiet, *_overdue(link)


def _quiet(process: Process) -> Cause:
    return "dead" if process.state == "dead" else "stopped" if process.state == "stopped" else "silent"


def _started(process: Process) -> int:
    return process.page.identity.created_ns
