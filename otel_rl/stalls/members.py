"""The processes of a run as their status pages show them, and what each of them is in."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from otel_rl import vocabulary as v
from otel_rl.journal.filesystem import silent_s
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.page import PageView, find_pages
from otel_rl.probes.python_stacks import catches, process_status
from otel_rl.runs.role_words import role_in_words
from otel_rl.stalls.bounds import Bound, StallBounds

LATE_S: Final = 10.0
"""A process whose heartbeat is older gives no sign of life; the flusher beats every half second."""
LATE_ELSEWHERE_S: Final = 120.0
"""The same for a process of another node: a file server shows its page half a minute late."""
BEHIND_S: Final = 2.0
"""A flusher that is so late has not seen what its threads have done since."""
State = Literal["working", "silent", "stopped", "traced", "dead"]


@dataclass(frozen=True)
class Leaf:
    """The innermost stage that a process, or one of its threads, is in. Times are monotonic ns of its machine."""

    name: str
    kind: str
    """By which its history is known."""
    began_ns: int
    touched_ns: int
    """When something directly inside it ended last, else when it began."""
    span_id: str = ""
    attributes: tuple[tuple[str, Any], ...] = ()

    def get(self, key: str) -> Any:
        """Return the value of an attribute; None without one."""
        return dict(self.attributes).get(key)

    @property
    def is_container(self) -> bool:
        """Return whether it is a step or a set-up, so that its process is in no stage."""
        return self.name.startswith(v.CONTAINER) or self.name in {v.LOOP, v.SETUP, v.TEARDOWN}


@dataclass(frozen=True)
class Process:
    """A process of the run at the moment of a look."""

    page: PageView
    state: State
    now_ns: int
    """The monotonic clock of its machine, ns."""
    is_local: bool = True

    @property
    def writer(self) -> str:
        return self.page.identity.writer

    @property
    def is_driver(self) -> bool:
        """Return whether it holds the steps and lets others work."""
        return "driver" in {self.page.process, self.page.role}

    @property
    def kind(self) -> str:
        """Return what it is in words: ``rank``, or its role."""
        return "rank" if self.page.process == "rank" and not self.is_driver else role_in_words(self.page.role)

    @property
    def is_quiet(self) -> bool:
        """Return whether it gives no sign of life, so that only its threads' own word of its stage counts.

        It is so early where its threads went on after the last heartbeat: then its open stages are out of date.
        """
        is_behind = self.page.began_ns > self.page.heartbeat_ns and self.silent_s() > BEHIND_S
        return self.state not in {"working", "traced"} or (self.state == "working" and is_behind)

    @cached_property
    def leaves(self) -> list[Leaf]:
        """Return the innermost open stages.

        If the process gives no sign of life, return the stage that its threads showed last.
        """
        parents = {row["parent"] for row in self.page.open}
        if not self.is_quiet:
            return [_leaf(row) for row in self.page.open if row["id"] not in parents]
        page = self.page
        known = [row for row in page.open if row["began"] == page.began_ns]
        if known:
            return [_leaf(known[0])]
        if page.stage:
            return [Leaf(page.stage, page.stage, page.began_ns, page.began_ns)]
        containers = [one for one in map(_leaf, page.open) if one.is_container]
        return [Leaf(one.name, one.kind, one.began_ns, page.began_ns, one.span_id) for one in containers[-1:]]

    def age_s(self, leaf: Leaf) -> float:
        """Return for how long nothing has happened in a stage, s, as far as its process says."""
        seen_ns = self.now_ns if self.is_quiet else self.page.heartbeat_ns
        return max(0, seen_ns - leaf.touched_ns) / 1e9

    def silent_s(self) -> float:
        """Return how old its last sign of life is, s."""
        return max(0, self.now_ns - self.page.heartbeat_ns) / 1e9

    def name_of(self, leaf: Leaf) -> str:
        """Return the name by which a stage is told and has a bound; of time in no stage that of step or phase."""
        if leaf.name and not leaf.is_container:
            return leaf.name
        if self.page.step is not None:
            return v.LOOP
        return v.TEARDOWN if any(kind.startswith(v.CONTAINER) for kind in self.page.normal) else v.SETUP

    def bound(self, leaf: Leaf, bounds: StallBounds) -> Bound:
        """Return how long a stage may take."""
        normal, is_in_step = self.page.normal, self.page.step is not None
        if leaf.is_container and not is_in_step:
            return bounds.of(self.name_of(leaf), None, is_in_step=False)
        calls = normal.get(leaf.kind)
        if calls is None:  # its labels are not known: it may be the slowest of those with its name
            alike = [of for kind, of in normal.items() if kind.partition("{")[0] == leaf.name]
            calls = max(alike, key=lambda of: of[1], default=None)
        return bounds.of(self.name_of(leaf), calls, is_in_step=is_in_step)

    def moved_ns(self) -> int:
        """Return when something happened in it last (monotonic, ns)."""
        return max([self.page.began_ns, *(int(row["touched"]) for row in self.page.open)])


def _leaf(row: dict[str, Any]) -> Leaf:
    name, attributes = row["name"], tuple(row["attributes"].items())
    return Leaf(name, row["kind"], row["began"], row["touched"], row["id"], attributes)


def find_processes(directory: Path, is_mine: Callable[[WriterIdentity], bool]) -> list[Process]:
    """Read the pages of a run directory. Cost: 0.1 ms a process.

    Args:
        directory: of the run.
        is_mine: whether a process runs on this node.
    """
    return [_process(page, is_mine(page.identity)) for page in find_pages(directory).values()]


def find_here(directory: Path) -> list[Process]:
    """Read the pages of a run directory, for a command that a person runs on one of its nodes."""
    boot_id = WriterIdentity.current("reader", 0).boot_id
    return find_processes(directory, lambda identity: identity.boot_id == boot_id)


def _process(page: PageView, is_local: bool) -> Process:
    now_ns = time.monotonic_ns() if is_local else time.time_ns() - page.anchor_ns
    return Process(page, _state(page, now_ns, is_local=is_local), now_ns, is_local)


def _state(page: PageView, now_ns: int, *, is_local: bool) -> State:
    if not page.identity.is_alive(lambda: silent_s(page.path)):
        return "dead"
    status = dict(process_status(page.identity.local_pid)) if is_local else {}
    if status.get("TracerPid", "0") != "0":
        return "traced"
    if status.get("State", "").startswith("T"):
        return "stopped"
    is_late = now_ns - page.heartbeat_ns > 1e9 * (LATE_S if is_local else LATE_ELSEWHERE_S)
    if is_late and status and page.signal and not catches(page.identity.local_pid, page.signal):
        return "dead"  # it runs another program (exec), which has its number and none of its handlers
    return "silent" if is_late else "working"
