"""Which rollout each step trains on: arrows from the stage that made it to the step's first training stage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_rl import vocabulary as v
from otel_rl.journal.read import Run, SpanView
from otel_rl.runs.spans import text

KEYS: Final = (v.ROLLOUT_ID, v.MODE)
TRAINING: Final = frozenset({v.TRAIN, v.MINI_BATCH, v.FORWARD})
MADE: Final = (v.SAMPLE, v.SAMPLE_GROUP, v.TRAJECTORY)
"""Stages that make a rollout, the outer ones first. Of a step the arrows are from the outermost that it has."""
EVALUATION: Final = "eval"


class TraceArrow(NamedTuple):
    """From a rollout to the training on it, by the ids of their spans."""

    source: bytes
    target: bytes


class _Begin(NamedTuple):
    ns: int
    span_id: bytes


def arrows(run: Run) -> list[TraceArrow]:
    """Return the arrows of a run.

    A training stage names its rollout (``rl.rollout.id``), or a span of its step links to the rollouts, or the step has
    rollouts of its own. Cost: two passes over the spans; memory grows with the rollouts and the steps.
    """
    linked = list(_links(run))
    found = _Rollouts({source for source, _ in linked})
    for span in run.spans(KEYS):
        if span.attributes.get(v.MODE) != EVALUATION:
            found.add(span)
    return sorted({arrow for arrow in found.arrows(linked) if arrow is not None})


class _Rollouts:
    """Rollouts, and the first training stage of each trace and of each rollout in a trace."""

    def __init__(self, linked: set[bytes]) -> None:
        self._linked = linked
        self._begins: dict[bytes, _Begin] = {}
        """Begins of the spans that others link to."""
        self._named: dict[str, _Begin] = {}
        """Begins of rollouts, by their id."""
        self._made: defaultdict[bytes, defaultdict[str, list[_Begin]]] = defaultdict(lambda: defaultdict(list))
        """Begins of rollouts without an id, by trace and stage."""
        self._trained: dict[tuple[str, bytes], _Begin] = {}
        self._first: dict[bytes, _Begin] = {}

    def add(self, span: SpanView) -> None:
        begin = _Begin(span.start_ns, span.span_id)
        rollout = text(span.attributes, v.ROLLOUT_ID)
        if span.span_id in self._linked:
            self._begins[span.span_id] = begin
        if span.name in MADE and rollout:
            self._named[rollout] = begin
        elif span.name in MADE:
            self._made[span.trace_id][span.name].append(begin)
        elif span.name in TRAINING:
            self._first[span.trace_id] = min(begin, self._first.get(span.trace_id, begin))
            if rollout:
                key = rollout, span.trace_id
                self._trained[key] = min(begin, self._trained.get(key, begin))

    def arrows(self, linked: list[tuple[bytes, bytes]]) -> Iterator[TraceArrow | None]:
        for (rollout, _), training in self._trained.items():
            yield _arrow(self._named.get(rollout), training)
        known = {begin.span_id for begin in self._named.values()}
        for source, trace in linked:
            if source not in known:
                yield _arrow(self._begins.get(source), self._first.get(trace))
        told = {trace for _, trace in self._trained} | {trace for _, trace in linked}
        for trace, stages in self._made.items():
            for begin in next(stages[name] for name in MADE if name in stages) if trace not in told else ():
                yield _arrow(begin, self._first.get(trace))


def _arrow(source: _Begin | None, target: _Begin | None) -> TraceArrow | None:
    """Return an arrow, unless it has no begin or no end, or leads back in time."""
    if source is None or target is None or target.ns < source.ns:
        return None
    return TraceArrow(source.span_id, target.span_id)


def _links(run: Run) -> Iterator[tuple[bytes, bytes]]:
    """Yield for each link to another trace the span that it leads to, and the trace that it comes from."""
    for _, frame in run.frames("traces"):
        try:
            request = ExportTraceServiceRequest.FromString(frame.payload)
        except DecodeError:
            continue
        for group in request.resource_spans:
            for scope in group.scope_spans:
                for span in scope.spans:
                    for link in span.links:
                        if link.trace_id != span.trace_id:
                            yield link.span_id, span.trace_id
