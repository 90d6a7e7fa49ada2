"""Ranks that journal steps by hand: stages with collectives inside them, each rank by a clock of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from zlib import crc32

from otel_rl import ids
from otel_rl import vocabulary as v
from otel_rl.comm.collectives import SPANS_PER_STAGE
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.otlp.encode import SpanEncoder
from otel_rl.journal.write import Writer
from otel_rl.records import Log, MetricPoints
from tests.made_runs import FakeSpan

MS = 1_000_000
BEGIN_NS = 1_700_000_000_000_000_000
ALIVE = WriterIdentity.current("trainer", 0, "1.0")
"""This process."""
WORLD = "default_pg 0"


@dataclass(frozen=True)
class Met:
    """One collective on one rank."""

    ms: float
    sequence: int = 0
    operation: str = "all_reduce"
    group: str = WORLD
    size: int = 2
    more: dict[str, Any] = field(default_factory=dict)

    def attributes(self) -> dict[str, Any]:
        """What its span says."""
        known: dict[str, Any] = {
            v.COMM_OPERATION: self.operation, v.COMM_GROUP: self.group, v.COMM_GROUP_SIZE: self.size,
        }  # fmt: skip
        return {**known, **({v.COMM_SEQUENCE: self.sequence} if self.sequence else {}), **self.more}


@dataclass(frozen=True)
class Did:
    """One stage on one rank: its own work, then its collectives, then the stages inside it."""

    name: str
    """Empty: under no stage."""
    own_ms: float
    met: Sequence[Met] = ()
    more: dict[str, Any] = field(default_factory=dict)
    shown: bool = True
    """Whether its collectives are spans: the longest of many, as the flusher writes them."""
    inside: Sequence[Did] = ()


class Peer:
    """One rank."""

    def __init__(
        self,
        directory: Path,
        rank: int,
        world_size: int = 2,
        *,
        attempt: str = "a" * 16,
        role: str = "trainer",
        clock_ms: int = 0,
        identity: WriterIdentity = ALIVE,
        place: Mapping[str, int] | None = None,
        **sizes: int,
    ) -> None:
        self.rank, self.attempt = rank, attempt
        self.now_ns = BEGIN_NS + clock_ms * MS
        self.identity = replace(identity, writer=f"{role}-{rank}-{attempt[:1]}")
        self.resource = {
            v.ATTEMPT_ID: attempt, v.ROLE: role, v.RANK: rank, v.WORLD_SIZE: world_size, v.RUN_ID: directory.name,
            v.SERVICE_INSTANCE_ID: f"{attempt}-{role}-{rank}", v.DISTRO_VERSION: "1.0", **(place or {}),
        }  # fmt: skip
        self._encoder = SpanEncoder(self.resource, "1.0")
        self._writer = Writer(directory, self.identity, **{"max_bytes": 1 << 30, **sizes})
        self._ids = itertools.count(crc32(self.identity.writer.encode()) << 20)

    def step(
        self,
        number: int,
        did: Iterable[Did],
        *,
        loop: str = "train",
        restart_of: str = "",
        status: int = 0,
        is_cut: bool = False,
        is_journaled: bool = True,
        cpu_s: float | None = None,
    ) -> list[FakeSpan]:
        """Make one step and journal it, as the flusher does: what ended last first."""
        trace, begin_ns = ids.trace_id(self.attempt, loop, number), self.now_ns
        container = next(self._ids)
        spans: list[FakeSpan] = []
        for one in did:
            spans += self._stage(one, trace, container)
        root = ids.root_id(self.attempt, loop, number)
        attributes: dict[str, Any] = {v.ITERATION: number, v.LOOP_NAME: loop, **({v.TRUNCATED: True} if is_cut else {})}
        attributes |= {v.LOOP_RESTART_OF: restart_of} if restart_of else {}
        name = f"{v.RANK_SPAN} {self.rank}"
        of_rank = attributes if cpu_s is None else {**attributes, v.CPU_TIME: cpu_s}
        spans.append(FakeSpan(name, trace, container, root, begin_ns, self.now_ns, of_rank))
        spans[-1].status = (status, "") if status else None
        if self.rank == 0:
            spans.append(FakeSpan(v.LOOP, trace, root, 0, begin_ns, self.now_ns, dict(attributes)))
            spans[-1].status = spans[-2].status
        if is_journaled:
            self.write(spans[::-1])
        return spans

    def write(self, spans: Sequence[FakeSpan]) -> None:
        """Journal spans."""
        for request in self._encoder.encode(spans):
            self._writer.append(request.signal, request.payload, request.count, request.first_ns, request.last_ns)

    def measure(self, *metrics: MetricPoints) -> None:
        """Journal points."""
        for request in self._encoder.encode_metrics(metrics):
            self._writer.append(request.signal, request.payload, request.count, request.first_ns, request.last_ns)

    def spool(self, spans: Sequence[FakeSpan]) -> None:
        """Hold spans, as while the attempt is unknown."""
        assert self._writer.spool("traces", self._encoder.encode(spans))

    def open(self, *names: str) -> None:
        """Journal that stages are open from now on, one inside the other."""
        parent = ""
        for name in names:
            span = next(self._ids)
            facts = {v.STAGE: name, v.START_TIME: self.now_ns, v.PARENT_ID: parent}
            log = Log(v.OPEN, self.now_ns, facts, name, 9, ids.trace_id(self.attempt, v.SETUP, 0), span)
            for request in self._encoder.encode_logs([log]):
                self._writer.append(request.signal, request.payload, request.count, request.first_ns, request.last_ns)
            parent = f"{span:016x}"

    def redirect(self, directory: Path) -> None:
        """Write on elsewhere."""
        self._writer.redirect(directory)

    def look(self) -> None:
        """See whether the files are where they were made."""
        self._writer.heartbeat()

    def die(self) -> None:
        """Write no more; who looks finds this process dead, because its journal says another start time."""
        self._writer.close()

    def _stage(self, did: Did, trace: int, container: int) -> list[FakeSpan]:
        stage, begin_ns = next(self._ids), self.now_ns
        self.now_ns += round(did.own_ms * MS)
        if not did.name:
            return []
        spans = []
        for met in did.met:
            start_ns = self.now_ns
            self.now_ns += round(met.ms * MS)
            spans.append(FakeSpan(v.COMM, trace, next(self._ids), stage, start_ns, self.now_ns, met.attributes()))
        inside = [span for one in did.inside for span in self._stage(one, trace, stage)]
        comm = {v.COMM_COUNT: len(did.met), v.COMM_TIME: sum(met.ms for met in did.met) / 1e3} if did.met else {}
        longest = sorted(spans, key=lambda span: span.start_ns - span.end_ns)[:SPANS_PER_STAGE]
        shown = sorted(longest, key=lambda span: span.start_ns) if did.shown else []
        return [
            *inside,
            *shown,
            FakeSpan(did.name, trace, stage, container, begin_ns, self.now_ns, {**comm, **did.more}),
        ]
