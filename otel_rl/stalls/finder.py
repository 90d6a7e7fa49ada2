"""Finding stalls: looks at the processes of a run every few seconds, and says when a stall begins and ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Final

from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.page import keep
from otel_rl.stalls.bounds import StallBounds
from otel_rl.stalls.chain import Situation, Stall
from otel_rl.stalls.members import Process, find_processes

LOOK_S: Final = 2.0
PAUSE_S: Final = 6.0
"""A look that comes later than this was held up together with all others: a suspended or overloaded machine."""
LOOKS: Final = 2
"""A stall is found once it is seen in so many looks, one after the other."""
Key = tuple[str, int]


@dataclass
class StallChange:
    """A stall that was found, or has ended."""

    stall: Stall
    is_end: bool = False
    has_died: bool = False
    """At an end: its process was killed in it."""
    lasted_s: float = 0.0
    """At an end: how long nothing happened in the stage."""
    how: str = ""
    """At an end: what happened to it."""


@dataclass
class _Seen:
    stall: Stall
    looks: int = 0
    is_told: bool = False


@dataclass
class StallFinder:
    """What is remembered from one look to the next."""

    directory: Path
    is_mine: Callable[[WriterIdentity], bool]
    bounds: StallBounds = field(default_factory=StallBounds)
    is_watched: Callable[[WriterIdentity], bool] = lambda _: True
    """Whether somebody watches the node of a process of another node."""
    clock: Callable[[], float] = monotonic
    _seen: dict[Key, _Seen] = field(default_factory=dict)
    _looked_s: float = 0.0
    _is_late: bool = False
    _held_until_s: float = 0.0
    _traced_s: dict[str, float] = field(default_factory=dict)
    """When a debugger was last seen to hold a process, by writer."""

    @property
    def active(self) -> list[Stall]:
        """Return the stalls that go on and have been told."""
        return [one.stall for one in self._seen.values() if one.is_told]

    @property
    def is_due(self) -> bool:
        return self.clock() - self._looked_s >= LOOK_S

    def look(self) -> list[StallChange]:
        """Look at all processes; return what has changed. Cost: 0.1 to 0.3 ms a process.

        After a pause of the whole machine it finds nothing new before a stage had its time again. Looks that are late
        one after the other are no pause: it is this process that is slow.
        """
        now = self.clock()
        was_late, self._is_late = self._is_late, bool(self._looked_s) and now - self._looked_s > PAUSE_S
        if self._is_late and not was_late:
            self._held_until_s = now + self.bounds.after_s
        self._looked_s = now
        everyone = find_processes(self.directory, self.is_mine)
        for process in everyone:
            if process.state == "dead" and process.is_local:
                with suppress(OSError):  # its disk is full
                    keep(process.page)
        ended = [one for one in everyone if one.state == "dead" and one.page.is_unwritten]
        processes = newest_attempt([one for one in everyone if one not in ended])
        self._traced_s.update({one.writer: now for one in processes if one.state == "traced"})
        stalls = Situation(processes, self.bounds).stalls()
        found = {stall.last.key: stall for stall in stalls if self._tells(stall)}
        changes = [*self._ends(found, everyone)]
        for key, stall in found.items():
            seen = self._seen.setdefault(key, _Seen(stall))
            cause = seen.stall.cause if seen.is_told else stall.cause  # its end is told under what was told before
            seen.stall, seen.looks = replace(stall, cause=cause), seen.looks + 1
            if not seen.is_told and seen.looks >= LOOKS and now >= max(self._held_until_s, self._free_s(key[0])):
                seen.is_told = True
                changes.append(StallChange(stall))
        return changes

    def _tells(self, stall: Stall) -> bool:
        """Return whether this node tells: that of the last link, or where that is gone, that of the first who waits."""
        last = stall.last.process
        if last.is_local or last.state != "dead" or self.is_watched(last.page.identity):
            return last.is_local
        return min(stall.waiting, key=lambda one: one.process.writer).process.is_local

    def _free_s(self, writer: str) -> float:
        """Return from when on a process that a debugger has held may be found to stall."""
        return self._traced_s[writer] + self.bounds.after_s if writer in self._traced_s else 0.0

    def _ends(self, found: dict[Key, Stall], processes: Iterable[Process]) -> Iterable[StallChange]:
        by_writer = {one.writer: one for one in processes}
        now_waiting = {one.key for stall in found.values() for one in stall.waiting}
        for key in [key for key in self._seen if key not in found]:
            seen = self._seen.pop(key)
            if seen.is_told:
                yield _ended(seen.stall, by_writer.get(key[0]), waits=key in now_waiting)


def _ended(stall: Stall, process: Process | None, *, waits: bool) -> StallChange:
    """Return the end of a stall: its stage ended, or goes on, or waits for another, or its process is gone."""
    last, leaf = stall.last, stall.last.leaf
    if process is None:  # its page was removed: it closed its journal
        return StallChange(stall, is_end=True, lasted_s=last.age_s, how="its process has ended, or records no more")
    if process.state == "dead" and stall.cause != "dead":
        return StallChange(stall, is_end=True, has_died=True, lasted_s=last.age_s, how="its process was killed in it")
    same = [row["touched"] for row in process.page.open if row["began"] == leaf.began_ns]
    is_open = bool(same) or leaf.began_ns == process.page.began_ns
    moved_ns = max([*same, process.moved_ns()])
    if waits:
        how = "it waits for another"
    elif not is_open:
        how = "the stage has ended"
    else:
        how = "the stage goes on" if moved_ns > leaf.touched_ns else "it holds nobody up any more"
    until_ns = moved_ns if moved_ns > leaf.touched_ns else process.now_ns
    lasted_s = max(last.age_s, (until_ns - leaf.touched_ns) / 1e9)  # another thread may have moved before
    return StallChange(stall, is_end=True, lasted_s=lasted_s, how=how)


def newest_attempt(processes: list[Process]) -> list[Process]:
    """Return the processes of the attempt that began last among those with a living process."""
    living = [one for one in processes if one.state != "dead"]
    newest = max(living, key=lambda one: one.page.identity.created_ns, default=None)
    return [] if newest is None else [one for one in processes if one.page.attempt == newest.page.attempt]
