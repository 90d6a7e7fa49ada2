"""Comparing the ranks of a run while it runs: their waits for each other as spans and metrics, and who is slow.

What is found belongs to the rank that it is about: it is written with that rank's own resource, into the sidecar's
journal. Where nodes share a directory, one sidecar does it for all of them: that on the node of the lowest rank.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.otlp.encode import OtlpRequest
from otel_rl.probes.sample import Sample
from otel_rl.sidecar.compare.align import Meeting, Meetings
from otel_rl.sidecar.compare.emit import Emitter
from otel_rl.sidecar.compare.rank_step import KEYS, Parts, Role, role_of
from otel_rl.sidecar.compare.skew import disagree, members
from otel_rl.sidecar.compare.tail import Tail
from otel_rl.sidecar.follow import Stream
from otel_rl.sidecar.node import Node
from otel_rl.sidecar.owner import ROLE

WORK_S: Final = 0.5
"""So long one call reads at most; a look at the directory comes between two."""
PAUSE_S: Final = 1.0
"""Where looking at the files alone takes long, twice as long passes before the next call, but no more than this."""
BEHIND_BYTES: Final = 64 << 20
"""Where more than that is unread, all until now is passed over: whole steps, of all ranks."""

AWAITED_S: Final = 90.0
"""So long the journal of rank 0 is waited for: a directory that nodes share may show files of others a minute late."""


class Deriver:
    """Compares the ranks whose journals lie in a directory; one thread."""

    def __init__(self, directory: Path, identity: WriterIdentity, say: Callable[[str], None]) -> None:
        """Begin where an earlier sidecar ended.

        Args:
            directory: of the run.
            identity: of this sidecar.
            say: takes lines for people.
        """
        self._identity = identity
        self._say = say
        self._emitter = Emitter(directory, identity)
        self._tails: dict[str, Tail] = {}
        self._unmet: dict[str, Tail] = {}
        """Of writers whose spans do not tell yet who writes."""
        self._ranks: dict[str, tuple[Role, int]] = {}
        """Of every writer whose first spans are there."""
        self._broken: set[str] = set()
        self._ours: set[Role] = set()
        """Those whose lowest rank is on this node."""
        self._since: dict[Role, float] = {}
        """When they were first seen without rank 0, by a monotonic clock, s."""
        self._parts = Parts()
        self._meetings = Meetings()
        self._members: defaultdict[Role, defaultdict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        """By process group, the ranks that were ever seen in it."""
        self._counts: Counter[str] = Counter()
        self._has_said = False
        self._set_back: set[str] = set()
        """Writers whose clock was set back behind what an earlier sidecar compared."""
        self._work_at = 0.0

    @property
    def is_behind(self) -> bool:
        """Whether something of a dead writer of this node is still to be read."""
        return any(tail.is_finished and tail.unread for tail in self._followed() if self._is_here(tail.identity))

    def samples(self) -> Iterator[Sample]:
        """Say what became of the steps so far."""
        counts = self._counts + self._meetings.counts + Counter(too_large=self._parts.overflown)
        for outcome, number in counts.items():
            yield Sample(v.SELF_DERIVED, number, ((v.OUTCOME, outcome),))

    def work(self, node: Node) -> list[OtlpRequest]:
        """Read on for a while and compare the steps that are there as a whole; what to journal.

        Cost: 14 us a span, and some 20 us for each journal.
        """
        began = monotonic()
        if began < self._work_at:
            return []
        self._look(node)
        if sum(tail.unread for tail in self._followed()) > BEHIND_BYTES:
            self.skip()
        read = self._read(monotonic() + WORK_S)
        self._look_at_clocks()
        finished = {tail.identity.writer for tail in self._followed() if tail.is_finished and not tail.unread}
        for part in self._parts.settled(monotonic(), read, finished):
            self._meetings.add(part, monotonic())
        for writer in finished:
            self._parts.forget(writer)
        going_on = {tail.identity.writer for tail in self._followed()} - finished
        living = {rank for writer, rank in self._parts.ranks.items() if writer in going_on}
        for meeting in self._meetings.complete(monotonic(), living):
            self._counts[self._derive(meeting)] += 1
        self._work_at = monotonic() + min(2 * max(monotonic() - began - WORK_S, 0), PAUSE_S)
        return self._emitter.take()

    def skip(self) -> None:
        """Pass over all that was written until now, and forget the steps that wait."""
        self._counts["behind"] += 1
        if not self._has_said:
            self._has_said = True
            self._say("more spans wait than can be compared over ranks: rl.skew.wait and rl.straggler.cost miss steps")
        for tail in self._followed():
            try:
                tail.skip()
            except OSError as error:
                self._give_up(tail, error)
        self._parts.clear()
        self._meetings.clear()

    # --- reading ------------------------------------------------------------------------------------------------------

    def _look(self, node: Node) -> None:
        """Meet new writers, and see which segments there are and who died."""
        for (writer, signal), stream in node.found.items():
            if signal != "traces" or writer.startswith(f"{ROLE}-") or writer in self._broken:
                continue
            identity = node.writers.get(writer) or node.strangers.get(writer)
            if identity is not None and writer not in self._tails:
                self._meet(stream, identity)
            if writer in self._tails:
                self._tails[writer].stream.files = stream.files
        lowest: dict[Role, tuple[int, bool]] = {}
        for writer, tail in self._tails.items():
            role, rank = self._ranks[writer]
            lowest[role] = min(lowest.get(role, (rank, True)), (rank, not self._is_here(tail.identity)))
        self._ours = {
            role
            for role, (rank, is_elsewhere) in lowest.items()
            if not is_elsewhere and not (rank and self._is_awaiting(role, node))
        }
        for tail in self._followed():
            tail.is_finished = not node.is_alive(tail.identity.writer)

    def _is_awaiting(self, role: Role, node: Node) -> bool:
        """Whether the journal of rank 0 may only not be seen yet: its sidecar would say other things of the same steps.

        Where nothing lives any more, or no rank 0 is seen for long (directories of one node each), it is done here.
        """
        now = monotonic()
        is_new = now - self._since.setdefault(role, now) < AWAITED_S
        return is_new and any(node.is_alive(writer) for writer, (of, _) in self._ranks.items() if of == role)

    def _meet(self, stream: Stream, identity: WriterIdentity) -> None:
        tail = self._unmet.setdefault(stream.writer, Tail(Stream(stream.writer, stream.signal), identity))
        tail.stream.files = stream.files
        resource = None
        try:
            resource = tail.peek()
        except OSError as error:
            self._give_up(tail, error)
        if resource is None:
            return  # its first frame is not there yet
        del self._unmet[stream.writer]
        tail.known_from_ns = self._emitter.done_until(resource)
        rank = resource.get(v.RANK)
        self._ranks[stream.writer] = role_of(resource), rank if isinstance(rank, int) else 0
        self._tails[stream.writer] = tail

    def _read(self, deadline: float) -> set[str]:
        """Read one frame of each in turn; the writers of which all was read."""
        read: set[str] = set()
        waiting = [(tail, tail.read(KEYS)) for tail in self._followed()]
        while waiting and monotonic() < deadline:
            going_on = []
            for tail, frames in waiting:
                try:
                    spans = next(frames, None)
                except OSError as error:
                    self._give_up(tail, error)
                    continue
                if spans is None:
                    read.add(tail.identity.writer)
                    continue
                now = monotonic()
                for span in spans:
                    self._parts.add(span, tail.known_from_ns, now)
                going_on.append((tail, frames))
            waiting = going_on
        return read

    def _look_at_clocks(self) -> None:
        """Count the writers whose steps cannot be told from those that were compared, and say it."""
        for writer in [tail.identity.writer for tail in self._followed() if tail.is_set_back]:
            if writer not in self._set_back:
                self._set_back.add(writer)
                self._counts["clock_set_back"] += 1
                until = "until it is past the last step that was compared, no more are"
                self._say(f"the clock of {writer} was set back: {until}")

    def _followed(self) -> list[Tail]:
        """The tails that this sidecar reads."""
        alone = self._parts.alone
        return [
            tail for writer, tail in self._tails.items() if self._ranks[writer][0] in self._ours and writer not in alone
        ]

    def _give_up(self, tail: Tail, error: OSError) -> None:
        writer = tail.identity.writer
        self._say(f"the spans of {writer} cannot be compared with those of others: {error.strerror or error}")
        self._broken.add(writer)
        self._tails.pop(writer, None)
        self._unmet.pop(writer, None)

    def _is_here(self, identity: WriterIdentity) -> bool:
        return identity.boot_id == self._identity.boot_id

    # --- comparing ----------------------------------------------------------------------------------------------------

    def _derive(self, meeting: Meeting) -> str:
        """Compare the ranks of one step; what became of it."""
        parts, role = meeting.parts, meeting.role
        if len(parts) < 2:
            return "alone"
        known = self._members[role]
        for group, ranks in members(parts.values()).items():
            known[group] |= ranks
        if disagree(parts.values()):
            return "disagree"
        readable = {rank for of, rank in self._parts.ranks.values() if of == role}
        self._emitter.emit(parts, readable, known)
        return "derived"
