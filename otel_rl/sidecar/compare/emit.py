"""What the comparison of ranks found, as spans and metric points of the ranks that it is about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from otel_rl import ids
from otel_rl import vocabulary as v
from otel_rl.analysis.bubbles import DENOMINATOR
from otel_rl.analysis.stragglers import between_stages, costs
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
from otel_rl.sidecar.compare.skew import Wait, longest_waits
from otel_rl.sidecar.owner import ROLE
from otel_rl.sidecar.streams import Position, find_streams
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
        self, steps: Mapping[int, ComparedStep], readable: Collection[int], known: Mapping[str, Collection[int]]
    ) -> None:
        """Make the records of one step; ``known`` are the ranks that were ever seen in each process group."""
        import numpy as np  # a command does without it

        from otel_rl.tables.calls import join
        from otel_rl.tables.peers import RankSteps, compare, own_times

        world_size = max(step.world_size for step in steps.values())
        scope = "run" if 0 < world_size <= len(readable) else "node"
        waits: defaultdict[int, list[Wait]] = defaultdict(list)
        for wait in longest_waits(steps, readable, known):
            waits[wait.rank].append(wait)
        role = next(iter(steps.values())).role
        if any(step.pipeline == UNKNOWN for step in steps.values()):
            self._unsaid.add(role)
        stages = {rank: UNKNOWN if role in self._unsaid else step.pipeline for rank, step in steps.items()}
        ranks = sorted(steps)
        listed = [steps[rank].calls for rank in ranks]
        calls = join([replace(one, rank_step=one.rank_step + at) for at, one in enumerate(listed)])
        rows = np.array([(0, stages[rank], rank) for rank in ranks], np.int64)
        compared = compare(calls, RankSteps(*rows.T))
        waited_ns = {rank: one.ns for rank, one in zip(ranks, compared.by_rank_step([()] * len(ranks)), strict=True)}
        own_of = own_times(compared)
        slow: dict[tuple[int, str], float] = {}
        for pipeline in dict.fromkeys(stages[rank] for rank in ranks):
            steps_ns = {rank: step.end_ns - step.begin_ns for rank, step in steps.items() if stages[rank] == pipeline}
            between_s = between_stages({rank: steps[rank].other_ns for rank in steps_ns}, waited_ns)
            slow |= costs({**own_of.get((0, pipeline), {}), v.OTHER: between_s}, max(steps_ns.values()))
        of_named = self._costs(role, slow)
        for rank in sorted(steps):
            step = steps[rank]
            encoder = self._encoder(step.resource)
            self._spans += encoder.encode(_idle(step, wait) for wait in waits[rank])
            points = [*self._waited(step, waited_ns.get(rank, 0), scope), *_slow(step, of_named, scope)]
            self._points += encoder.encode_metrics(points)

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
    collective = wait.collective
    attributes = {
        v.IDLE_REASON: SKEW,
        v.COMM_OPERATION: collective.operation,
        v.COMM_GROUP: collective.group,
        v.SKEW_RANK: wait.last,
    }
    if collective.sequence:
        attributes[v.COMM_SEQUENCE] = collective.sequence
    return MadeSpan(
        v.IDLE,
        int.from_bytes(step.trace_id, "big"),
        ids.idle_id(step.trace_id, collective.span_id),
        int.from_bytes(collective.parent_id, "big"),
        collective.begin_ns,
        collective.begin_ns + wait.wait_ns,
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
    from otel_rl.journal.columns.decode import decode_points

    name = v.SKEW_WAIT.encode()
    for (writer, signal), stream in find_streams(directory).items():
        if signal != "metrics" or not writer.startswith(f"{ROLE}-") or writer == identity.writer:
            continue
        journal = Journal(WriterIdentity(writer), [])
        for entry in stream.entries(Position(), finished=True):
            if isinstance(entry.item, Frame) and name in entry.item.payload:
                yield from decode_points([entry.item.payload]).views(journal, v.SKEW_WAIT)
