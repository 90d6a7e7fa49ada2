"""Comparing the ranks of a run while it runs: their waits for each other as spans and metrics, and who is slow.

What is found belongs to the rank that it is about: it is written with that rank's own resource, into the sidecar's
journal. Where nodes share a directory, one sidecar does it for all of them: that on the node of the lowest rank.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import Final

import numpy as np

from otel_rl import vocabulary as v
from otel_rl.journal.columns.decode import decode_spans
from otel_rl.journal.files import Journal
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.otlp.wire import OtlpRequest
from otel_rl.probes.sample import Sample
from otel_rl.runs.spans import is_container
from otel_rl.sidecar.compare.align import AlignedStep, Alignment
from otel_rl.sidecar.compare.emit import Emitter
from otel_rl.sidecar.compare.rank_step import CONTAINER_KEYS, KEYS, Role, StepCollector, role_of
from otel_rl.sidecar.compare.skew import Collectives, Members, StepOfRanks
from otel_rl.sidecar.compare.tail import SpanTail
from otel_rl.sidecar.owner import ROLE
from otel_rl.sidecar.ship_node import Node
from otel_rl.sidecar.streams import JournalStream
from otel_rl.tables.span_table import Texts, table_of_columns

WORK_S: Final = 0.5
"""A call reads this long at most; the directory is scanned between two calls."""
BATCH_BYTES: Final = 4 << 20
"""So much of all writers is decoded at once."""
PAUSE_S: Final = 1.0
"""If the files alone take long, twice as long passes before the next call, but no more than this."""
BEHIND_BYTES: Final = 64 << 20
"""If more is unread, everything until now is skipped: whole steps, of all ranks."""
AWAITED_S: Final = 90.0
"""How long to wait for the journal of rank 0: a shared directory may show files of other nodes a minute late."""


class RankComparer:
    """Compares the ranks whose journals lie in a directory; one thread."""

    def __init__(self, directory: Path, identity: WriterIdentity, say: Callable[[str], None]) -> None:
        """Begin where an earlier sidecar ended."""
        self._identity = identity
        self._say = say
        self._emitter = Emitter(directory, identity)
        self._tails: dict[str, SpanTail] = {}
        self._unknown: dict[str, SpanTail] = {}
        """Tails of writers whose spans do not show yet who writes."""
        self._ranks: dict[str, tuple[Role, int]] = {}
        """Role and rank of every writer whose first spans are there."""
        self._broken: set[str] = set()
        self._ours: set[Role] = set()
        """Roles whose lowest rank is on this node."""
        self._since: dict[Role, float] = {}
        """When roles were first seen without rank 0, monotonic, s."""
        self._journal = Journal(identity, [])
        """The resources of all ranks."""
        self._steps = StepCollector()
        self._alignment = Alignment()
        self._members: defaultdict[Role, Members] = defaultdict(lambda: Members(set))
        """The ranks that were ever seen in each process group."""
        self._counts: Counter[str] = Counter()
        self._has_said = False
        self._set_back: set[str] = set()
        """Writers whose clock was set back to before what an earlier sidecar compared."""
        self._work_at = 0.0

    @property
    def is_behind(self) -> bool:
        """Return whether something of a dead writer of this node is still to be read."""
        return any(tail.is_finished and tail.unread for tail in self._followed() if self._is_here(tail.identity))

    def samples(self) -> Iterator[Sample]:
        """Return what became of the steps so far."""
        counts = self._counts + self._alignment.counts + Counter(too_large=self._steps.overflown)
        for outcome, number in counts.items():
            yield Sample(v.SELF_DERIVED, number, ((v.OUTCOME, outcome),))

    def work(self, node: Node) -> list[OtlpRequest]:
        """Read on for a while, compare the steps that are complete, and return what to journal.

        Cost: 7 us a span, and some 20 us for each journal.
        """
        began = monotonic()
        if began < self._work_at:
            return []
        self._update(node)
        if sum(tail.unread for tail in self._followed()) > BEHIND_BYTES:
            self.skip()
        read = self._read(monotonic() + WORK_S)
        self._check_clocks()
        finished = {tail.identity.writer for tail in self._followed() if tail.is_finished and not tail.unread}
        for step in self._steps.completed(monotonic(), read, finished):
            self._alignment.add(step, monotonic())
        for writer in finished:
            self._steps.forget(writer)
        going_on = {tail.identity.writer for tail in self._followed()} - finished
        living = {rank for writer, rank in self._steps.ranks.items() if writer in going_on}
        self._compare(self._alignment.complete(monotonic(), living))
        self._work_at = monotonic() + min(2 * max(monotonic() - began - WORK_S, 0), PAUSE_S)
        return self._emitter.made()

    def skip(self) -> None:
        """Skip everything that was written until now, and forget the steps that wait."""
        self._counts["behind"] += 1
        if not self._has_said:
            self._has_said = True
            self._say("more spans wait than can be compared over ranks: rl.skew.wait and rl.straggler.cost miss steps")
        for tail in self._followed():
            try:
                tail.skip()
            except OSError as error:
                self._give_up(tail, error)
        self._steps.clear()
        self._alignment.clear()

    # --- reading ------------------------------------------------------------------------------------------------------

    def _update(self, node: Node) -> None:
        for (writer, signal), stream in node.found.items():
            if signal != "traces" or writer.startswith(f"{ROLE}-") or writer in self._broken:
                continue
            identity = node.writers.get(writer) or node.strangers.get(writer)
            if identity is not None and writer not in self._tails:
                self._add(stream, identity)
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
        """Return whether the journal of rank 0 may only not be visible yet: then its sidecar compares.

        If nothing lives any more, or no rank 0 is seen for long (each node has a directory), this one does.
        """
        now = monotonic()
        is_new = now - self._since.setdefault(role, now) < AWAITED_S
        return is_new and any(node.is_alive(writer) for writer, (of, _) in self._ranks.items() if of == role)

    def _add(self, stream: JournalStream, identity: WriterIdentity) -> None:
        tail = self._unknown.setdefault(stream.writer, SpanTail(JournalStream(stream.writer, stream.signal), identity))
        tail.stream.files = stream.files
        resource = None
        try:
            resource = tail.peek()
        except OSError as error:
            self._give_up(tail, error)
        if resource is None:
            return  # its first frame is not there yet
        del self._unknown[stream.writer]
        tail.known_from_ns = self._emitter.done_until(resource)
        rank = resource.get(v.RANK)
        self._ranks[stream.writer] = role_of(resource), rank if isinstance(rank, int) else 0
        self._tails[stream.writer] = tail

    def _read(self, deadline: float) -> set[str]:
        """Read one frame of each in turn; return the writers of which everything was read."""
        read: set[str] = set()
        batch: list[tuple[SpanTail, int, bytes]] = []
        size = 0
        unread = [(tail, tail.read()) for tail in self._followed()]
        while unread and monotonic() < deadline:
            going_on = []
            for tail, frames in unread:
                try:
                    payload = next(frames, None)
                except OSError as error:
                    self._give_up(tail, error)
                    continue
                if payload is None:
                    read.add(tail.identity.writer)
                    continue
                batch.append((tail, tail.known_from_ns, payload))
                size += len(payload)
                going_on.append((tail, frames))
            if size > BATCH_BYTES:
                self._collect(batch)
                batch, size = [], 0
            unread = going_on
        self._collect(batch)
        return read

    def _collect(self, batch: Sequence[tuple[SpanTail, int, bytes]]) -> None:
        """Decode spans of all writers at once."""
        spans = decode_spans([payload for _, _, payload in batch])
        if not len(spans.rows):
            return
        table = table_of_columns(spans, Texts(), KEYS, np.zeros(len(spans.rows), np.int64))
        kept = np.array([is_container(name) for name in table.texts.listed], bool)[table["name"]]
        for row, view in zip(np.flatnonzero(kept), spans.views(self._journal, CONTAINER_KEYS, kept), strict=True):
            table["view"][row] = view
        of = spans.rows["request"].tolist()
        writers, known_from = [tail.identity.writer for tail, _, _ in batch], [known for _, known, _ in batch]
        self._steps.add(table, [writers[one] for one in of], [known_from[one] for one in of], monotonic())

    def _check_clocks(self) -> None:
        """Count the writers whose steps may have been compared already, and say it."""
        for writer in [tail.identity.writer for tail in self._followed() if tail.is_set_back]:
            if writer not in self._set_back:
                self._set_back.add(writer)
                self._counts["clock_set_back"] += 1
                what = "its steps are not compared until it is past the last one that was"
                self._say(f"the clock of {writer} was set back: {what}")

    def _followed(self) -> list[SpanTail]:
        alone = self._steps.alone
        return [
            tail for writer, tail in self._tails.items() if self._ranks[writer][0] in self._ours and writer not in alone
        ]

    def _give_up(self, tail: SpanTail, error: OSError) -> None:
        writer = tail.identity.writer
        self._say(f"the spans of {writer} cannot be compared with those of others: {error.strerror or error}")
        self._broken.add(writer)
        self._tails.pop(writer, None)
        self._unknown.pop(writer, None)

    def _is_here(self, identity: WriterIdentity) -> bool:
        return identity.boot_id == self._identity.boot_id

    # --- comparing ----------------------------------------------------------------------------------------------------

    def _compare(self, found: Sequence[AlignedStep]) -> None:
        of_role = defaultdict[Role, list[StepOfRanks]](list)
        for aligned in found:
            if len(aligned.steps) > 1:
                of_role[aligned.role].append(aligned.steps)
            else:
                self._counts["alone"] += 1
        for role, steps in of_role.items():
            readable = {rank for of, rank in self._steps.ranks.values() if of == role}
            collectives = Collectives(steps)
            waits = collectives.longest_waits(readable, self._members[role])
            agreed = [at for at, is_apart in enumerate(collectives.disagree()) if not is_apart]
            self._counts["disagree"] += len(steps) - len(agreed)
            self._counts["derived"] += len(agreed)
            if agreed:
                self._emitter.emit([steps[at] for at in agreed], [waits[at] for at in agreed], readable)
