"""Who waits for whom: from a stage that takes too long to what it waits for, until something waits for nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal

from otel_rl import vocabulary as v
from otel_rl.stalls.bounds import UNKNOWN_S, Bound, StallBounds
from otel_rl.stalls.members import Leaf, Process

Cause = Literal["stage", "collective", "silent", "stopped", "dead", "unseen"]
Key = tuple[str, int]
DOUBT_S: Final = 3.0
"""A process whose heartbeat is older may be about to count as one that gives no sign of life."""
CALLERS: Final = frozenset((v.SAMPLE, v.SAMPLE_GROUP, v.TRAJECTORY, v.SAMPLE_TURN))
"""Stages that mostly wait for what other processes do."""
QUIET: Final = frozenset(("silent", "stopped", "dead"))
STUCK: Final = 2
"""The depth of a stall that waits for nobody."""


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
        """Return whether nothing has happened in it for longer than it may take."""
        return self.age_s > self.bound.seconds

    @property
    def key(self) -> Key:
        """Return what it is known by: its process, and when its stage began."""
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


Waiting = defaultdict[Key, dict[Key, Link]]


@dataclass
class Situation:
    """All processes of an attempt at one moment."""

    processes: Sequence[Process]
    bounds: StallBounds

    @cached_property
    def links(self) -> list[Link]:
        return [self._link(process, leaf) for process in self.processes for leaf in process.leaves]

    def _link(self, process: Process, leaf: Leaf) -> Link:
        bound = process.bound(leaf, self.bounds)
        if bound.normal_s is None and process.is_quiet and process.page.step is not None:
            bound = self._bound_of_peers(process, leaf) or bound  # its page may lack the calls that ended last
        return Link(process, leaf, bound)

    def _bound_of_peers(self, process: Process, leaf: Leaf) -> Bound | None:
        """Return how long the same stage may take on another process of the role; of several the longest time."""
        peers = [one for one in self.processes if one.page.role == process.page.role and one.page.step is not None]
        known = [bound for bound in (one.bound(leaf, self.bounds) for one in peers) if bound.normal_s is not None]
        return max(known, default=None)

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
        waiting: Waiting = defaultdict(dict)
        found: dict[Key, Stall] = {}
        for link in self.links:
            if link.process.state == "dead" or (link.leaf.is_container and not link.is_over):
                continue
            path, stall = self._follow(link)
            if stall is not None:
                found.setdefault(stall.last.key, stall)
                inside = {stall.last.key, *(one.key for one in stall.together)}
                waiting[stall.last.key].update({one.key: one for one in path if one.key not in inside})
        for key in list(found):
            if not any(one.is_over for one in [found[key].last, *waiting[key].values()]):
                del found[key]
        self._join(found, waiting)
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
                following, stall = self._works_for(last) or self._behind(last), None
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
        together = () if last.leaf.name == v.IDLE else self._alike(last)  # ranks that wait for work meet nowhere in it
        if together:
            return Stall(together[0], "collective", together=together)
        if last.process.is_driver or last.leaf.name == v.IDLE:
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
        first = min(inside, key=lambda one: one.process.page.rank, default=link)  # all ranks name the same one
        if unseen:
            late = link.is_over and link.age_s > UNKNOWN_S
            return None, Stall(first, "unseen", unseen=unseen[0]) if late else None
        return None, Stall(first, "collective", together=tuple(inside)) if link.is_over else None

    def _behind(self, link: Link) -> Link | None:
        """Return the rank that has not begun a collective which this one has begun: a device may wait for it.

        A collective of a device returns at once, and the host waits later, in whatever reads a result.
        """
        page, behind = link.process.page, []
        for name, (number, ranks) in page.groups.items() if link.is_over else ():
            peers = [self._by_rank.get((page.role, rank)) for rank in ranks]
            known = [one for one in peers if one is not None and one.page.groups.get(name, (number,))[0] < number]
            behind += [one for one in self.links if one.process in known]
        return max(behind, key=_blame, default=None)

    def _alike(self, link: Link) -> tuple[Link, ...]:
        """Return all ranks if all have been in the same stage for too long, and none of them is behind the others."""
        page = link.process.page
        peers = [self._by_rank.get((page.role, rank)) for rank in range(page.world_size)] if page.groups else []
        alike = [one for one in self.links if one.process in peers and one.leaf.name == link.leaf.name]
        inside = [one for one in alike if one.is_over and one.process.state == "working"]
        ranks = {one.process.page.rank for one in inside}
        return tuple(sorted(inside, key=lambda one: one.process.page.rank)) if len(ranks) == page.world_size > 1 else ()

    def _idle(self, process: Process) -> Link:
        """Return what stands for a process that is in no stage that has been open for a second."""
        return self._link(process, Leaf("", "", process.page.began_ns, process.page.began_ns))

    def _works_for(self, link: Link) -> Link | None:
        """Return what another process does for a stage; of several the one that is to blame most."""
        processes = self._called.get(link.leaf.span_id, []) if link.leaf.span_id else []
        links = [one for one in self.links if one.process in processes and one.process is not link.process]
        return max(links, key=_blame, default=None)

    # --- who waits although nothing says for whom ---------------------------------------------------------------------

    def _join(self, found: dict[Key, Stall], waiting: Waiting) -> None:
        """Make one stall of those that are alike in a process, and let who only waits wait for what is stuck."""

        def join(key: Key, first: Key) -> None:
            waiting[first].update(waiting.pop(key, {}) | {key: found.pop(key).last})

        firsts: dict[tuple[str, str], Key] = {}
        for key, stall in sorted(found.items(), key=_longest):
            first = firsts.setdefault((key[0], stall.last.leaf.name), key)
            if first != key:
                join(key, first)
        if not found:
            return
        if all(_depth(one) < STUCK for one in found.values()):
            if any(one.state == "working" and one.is_local and one.silent_s() > DOUBT_S for one in self.processes):
                found.clear()  # in a moment that process is known to be quiet, or says what it is in
                return
            gone = self._gone(min(one.last.leaf.touched_ns for one in found.values()))
            if gone is not None:
                found[gone.last.key] = gone
        deepest = max(map(_depth, found.values()))
        first, _ = min(((key, one) for key, one in found.items() if _depth(one) == deepest), key=_longest)
        for key in [key for key, one in found.items() if _depth(one) < max(deepest, 1) and key != first]:
            join(key, first)
        late = [one for one in self.links if self._may_wait(one, found[first].cause)]
        waiting[first].update({one.key: one for one in late if one.key != first})

    def _may_wait(self, link: Link, cause: Cause) -> bool:
        """Return whether a stage within its bound waits longer than normally, for nothing that is seen."""
        names = {v.IDLE, *CALLERS} if cause in QUIET else {v.IDLE}
        normal_s = link.bound.normal_s
        is_late = link.leaf.name in names and normal_s is not None and link.age_s > normal_s
        return is_late and self._works_for(link) is None

    def _gone(self, since_ns: int) -> Stall | None:
        """Return the process that is stopped, gives no sign of life, or has died since then: somebody may want it."""
        gone = [
            one
            for one in self.processes
            if one.is_local and one.state in QUIET and (one.state != "dead" or one.page.heartbeat_ns > since_ns - 1e9)
        ]
        if not gone:
            return None
        process = min(gone, key=lambda one: (one.page.heartbeat_ns, one.writer))
        beat = process.page.heartbeat_ns
        leaf = next(iter(process.leaves), Leaf(v.LOOP, v.LOOP, beat, beat))
        return Stall(self._link(process, leaf), _quiet(process))


def _longest(item: tuple[Key, Stall]) -> tuple[float, Key]:
    return -item[1].last.age_s, item[0]


def _depth(stall: Stall) -> int:
    """Return how sure it is that a stage does not wait for something that is not seen: ``STUCK`` at most."""
    last = stall.last
    if stall.cause != "stage" or not (last.process.is_driver or last.leaf.name == v.IDLE or last.leaf.is_container):
        return 1 if stall.cause == "stage" and last.leaf.name in CALLERS else STUCK
    return 0


def _overdue(link: Link) -> tuple[float, tuple[str, int]]:
    return link.age_s - link.bound.seconds, link.key


def _blame(link: Link) -> tuple[Any, ...]:
    return link.process.state == "dead", link.is_over, link.process.is_quiet, *_overdue(link)


def _quiet(process: Process) -> Cause:
    return "dead" if process.state == "dead" else "stopped" if process.state == "stopped" else "silent"


def _started(process: Process) -> int:
    return process.page.identity.created_ns
