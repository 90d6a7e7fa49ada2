"""What the comparison of ranks found, as spans and metric points of the ranks that it is about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from otel_rl import ids
from otel_rl import vocabulary as v
from otel_rl.analysis.bubbles import DENOMINATOR
from otel_rl.analysis.stragglers import costs
from otel_rl.journal.columns.decode import decode_points
from otel_rl.journal.files import Journal
from otel_rl.journal.frame import Frame
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.otlp.encode import SpanEncoder
from otel_rl.journal.otlp.wire import OtlpRequest
from otel_rl.journal.views import PointView
from otel_rl.records import Attributes, MetricPoints, Number
from otel_rl.runs.made_spans import MadeSpan
from otel_rl.runs.spans import SKEW, UNKNOWN, integer, text
from otel_rl.sidecar.compare.rank_step import ComparedStep, Role
from otel_rl.sidecar.compare.skew import StepOfRanks, Wait
from otel_rl.sidecar.owner import ROLE
from otel_rl.sidecar.streams import Position, find_streams
from otel_rl.tables.calls import join
from otel_rl.tables.forest import combinations
from otel_rl.tables.peers import RankSteps, between_stages, compare, own_times
from otel_rl.version import __version__

KEPT_ENCODERS: Final = 4096

_Rank = tuple[str, str, int, str]
"""Attempt, role, rank and instance."""


@dataclass(slots=True)
class _Total:
    """How long a rank has waited for others."""

    seconds: float = 0.0
    start_ns: int = 0
    until_ns: int = 0
    """Time of an earlier sidecar's point, to which it adds; 0 for none."""


class Emitter:
    """Makes the records, and knows what earlier sidecars made."""

    def __init__(self, directory: Path, identity: WriterIdentity) -> None:
        """Read how far earlier sidecars of the run came."""
        self._totals: defaultdict[tuple[_Rank, str], _Total] = defaultdict(_Total)
        """Each scope has its own: waits among the ranks of a node are no part of those among all ranks."""
        self._done_ns: defaultdict[_Rank, int] = defaultdict(int)
        """End of the last step of each rank that was compared."""
        self._encoders: dict[_Rank, SpanEncoder] = {}
        self._named: defaultdict[Role, set[tuple[int, str]]] = defaultdict(set)
        """Ranks that were slow in a stage: they have a point in every step after it."""
        self._unsaid: set[Role] = set()
        """Roles of which a rank did not say its pipeline stage: all their ranks are peers."""
        self._spans: list[OtlpRequest] = []
        self._points: list[OtlpRequest] = []
        with suppress(OSError):  # it is empty, or in trouble: at worst something comes twice, the same
            for point in _points_before(directory, identity):
                rank = _rank_of(point.resource)
                total = self._totals[rank, text(point.attributes, v.SCOPE_KEY)]
                if point.time_ns > total.until_ns:
                    total.seconds, total.start_ns, total.until_ns = point.value, point.start_ns, point.time_ns
                self._done_ns[rank] = max(self._done_ns[rank], point.time_ns)

    def done_until(self, resource: Attributes) -> int:
        """Return until when an earlier sidecar compared the steps of a rank, ns since 1970; 0 for none."""
        return self._done_ns[_rank_of(resource)]

    def emit(
        self, steps: Sequence[StepOfRanks], waits: Sequence[Mapping[int, Sequence[Wait]]], readable: Collection[int]
    ) -> None:
        """Make the records of some steps of one role.

        Args:
            steps: in order.
            waits: those in single collectives, by step and rank.
            readable: the ranks whose journals can be read.
        """
        role = next(iter(steps[0].values())).role
        parts = [self._parts(role, of_ranks) for of_ranks in steps]
        listed = [(at, rank) for at, of_ranks in enumerate(steps) for rank in sorted(of_ranks)]
        calls = [steps[at][rank].calls for at, rank in listed]
        compared = compare(
            join([replace(one, rank_step=one.rank_step + row) for row, one in enumerate(calls)]),
            RankSteps(*np.array([(at, parts[at][rank], rank) for at, rank in listed], np.int64).T),
        )
        own_of = own_times(compared)
        wait_ns = compared.by_rank_step([()] * len(listed)).ns
        _, part = combinations(compared.steps.step, compared.steps.part)
        between_ns = between_stages(part, np.array([steps[at][rank].other_ns for at, rank in listed]), wait_ns)
        waited: list[dict[int, int]] = [{} for _ in steps]
        for (at, rank), of_waits, between in zip(listed, wait_ns.tolist(), (between_ns / 1e9).tolist(), strict=True):
            waited[at][rank] = of_waits
            own_of.setdefault((at, parts[at][rank]), {}).setdefault(v.OTHER, {})[rank] = between
        for at, of_ranks in enumerate(steps):
            slow: dict[tuple[int, str], float] = {}
            for part in dict.fromkeys(parts[at].values()):
                peers = {rank: step for rank, step in of_ranks.items() if parts[at][rank] == part}
                longest_ns = max(step.end_ns - step.begin_ns for step in peers.values())
                slow |= costs(own_of[at, part], longest_ns)
            world_size = max(step.world_size for step in of_ranks.values())
            scope = "run" if 0 < world_size <= len(readable) else "node"
            of_named = self._costs(role, slow)
            for rank, step in sorted(of_ranks.items()):
                encoder = self._encoder(step.resource)
                if rank in waits[at]:
                    self._spans += encoder.encode(_idle(step, wait) for wait in waits[at][rank])
                points = [*self._waited(step, waited[at][rank], scope), *_slow(step, of_named, scope)]
                self._points += encoder.encode_metrics(points)

    def _parts(self, role: Role, of_ranks: StepOfRanks) -> dict[int, int]:
        """Return the pipeline stage of each rank of a step; its peers share it."""
        if any(step.pipeline == UNKNOWN for step in of_ranks.values()):
            self._unsaid.add(role)
        return {rank: UNKNOWN if role in self._unsaid else step.pipeline for rank, step in sorted(of_ranks.items())}

    def made(self) -> list[OtlpRequest]:
        """Return what was made: the points after the spans, since they say how far all this is done."""
        made, self._spans, self._points = self._spans + self._points, [], []
        return made

    def _costs(self, role: Role, slow: Mapping[tuple[int, str], float]) -> dict[tuple[int, str], float]:
        """Return the cost of every rank and stage that was ever slow; what is not slow any more costs nothing."""
        named = self._named[role]
        named |= set(slow)
        return {key: slow.get(key, 0.0) for key in sorted(named)}

    def _waited(self, step: ComparedStep, wait_ns: int, scope: str) -> Iterator[MetricPoints]:
        rank = _rank_of(step.resource)
        total = self._totals[rank, scope]
        total.start_ns = total.start_ns or step.begin_ns
        total.seconds += wait_ns / 1e9
        self._done_ns[rank] = max(self._done_ns[rank], step.end_ns)
        yield _metric(v.SKEW_WAIT, Number(step.end_ns, total.seconds, {v.SCOPE_KEY: scope}), start_ns=total.start_ns)
        if step.end_ns > step.begin_ns:
            labels = {v.BUBBLE_DENOMINATOR: DENOMINATOR, v.IDLE_REASON: SKEW, v.SCOPE_KEY: scope}
            yield _metric(v.BUBBLE_RATIO, Number(step.end_ns, wait_ns / (step.end_ns - step.begin_ns), labels))

    def _encoder(self, resource: Attributes) -> SpanEncoder:
        key = _rank_of(resource)
        if key not in self._encoders:
            if len(self._encoders) >= KEPT_ENCODERS:
                self._encoders.clear()
            self._encoders[key] = SpanEncoder(resource, text(resource, v.DISTRO_VERSION) or __version__)
        return self._encoders[key]


def _idle(step: ComparedStep, wait: Wait) -> MadeSpan:
    attributes = {
        v.IDLE_REASON: SKEW,
        v.COMM_OPERATION: wait.operation,
        v.COMM_GROUP: wait.group,
        v.SKEW_RANK: wait.last,
    }
    if wait.sequence:
        attributes[v.COMM_SEQUENCE] = wait.sequence
    trace = step.container.trace_id
    return MadeSpan(
        v.IDLE,
        int.from_bytes(trace, "big"),
        ids.idle_id(trace, wait.span_id.to_bytes(8, "big")),
        wait.parent_id,
        wait.begin_ns,
        wait.begin_ns + wait.ns,
        attributes,
    )


def _slow(step: ComparedStep, costs: Mapping[tuple[int, str], float], scope: str) -> Iterator[MetricPoints]:
    points = [
        Number(step.end_ns, cost, {v.STAGE: stage, v.SCOPE_KEY: scope})
        for (rank, stage), cost in costs.items()
        if rank == step.rank
    ]
    if points:
        yield _metric(v.STRAGGLER_COST, *points)


def _metric(name: str, *points: Number, start_ns: int = 0) -> MetricPoints:
    row = v.METRICS[name]
    return MetricPoints(name, row.kind, row.unit, row.meaning, points, start_ns)


def _rank_of(resource: Attributes) -> _Rank:
    attempt, role = text(resource, v.ATTEMPT_ID), text(resource, v.ROLE)
    return attempt, role, integer(resource, v.RANK), text(resource, v.SERVICE_INSTANCE_ID)


def _points_before(directory: Path, identity: WriterIdentity) -> Iterator[PointView]:
    name = v.SKEW_WAIT.encode()
    for (writer, signal), stream in find_streams(directory).items():
        if signal != "metrics" or not writer.startswith(f"{ROLE}-") or writer == identity.writer:
            continue
        journal = Journal(WriterIdentity(writer), [])
        for entry in stream.entries(Position(), finished=True):
            if isinstance(entry.item, Frame) and name in entry.item.payload:
                yield from decode_points([entry.item.payload]).views(journal, v.SKEW_WAIT)
