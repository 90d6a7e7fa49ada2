"""Collectives that Python sees: rows, all of them in metrics, the longest of each stage as spans inside it."""

from __future__ import annotations

import heapq
from time import monotonic_ns
from typing import Any

from otel_rl import vocabulary
from otel_rl.ids import random_bits
from otel_rl.records import Value
from otel_rl.runtime import state
from otel_rl.spans import Stage, current_stage

SPANS_PER_STAGE = 32


class Collective:
    """One call of a collective on this rank, from its begin; cheaper than a stage, since most never become a span."""

    __slots__ = ("began", "bytes", "ended", "operation", "span_id", "stage")

    def __init__(self, operation: str, size: int) -> None:
        self.operation = operation
        self.bytes = size
        """Bytes of this rank's input; 0 where no tensor shows them."""
        self.stage: Stage | None = current_stage()
        self.span_id = 0
        """Given by the flusher when it finds the collective open: then it must become a span."""
        self.ended = 0
        self.began = monotonic_ns()
        state.open.add(self)

    def close(self) -> None:
        """End now. Cost of open and close: 1 us."""
        self.ended = monotonic_ns()
        if self in state.open:
            state.add(self)
            state.open.discard(self)

    @property
    def attributes(self) -> dict[str, Value]:
        """What the collective's span and open record say."""
        known: dict[str, Value] = {vocabulary.COMM_OPERATION: self.operation}
        if self.bytes:
            known[vocabulary.COMM_BYTES] = self.bytes
        return known

    def as_stage(self) -> Stage:
        """Make the span."""
        span = Stage(vocabulary.COMM, self.attributes)
        if self.stage is not None:
            span.trace, span.parent_id = self.stage.trace, self.stage.span_id
        self.span_id = span.span_id = self.span_id or random_bits(64) or 1
        span.began, span.ended = self.began, self.ended
        return span


class InStage:
    """The collectives directly inside one stage, as far as they have ended."""

    __slots__ = ("count", "longest", "must", "total_ns")

    def __init__(self) -> None:
        self.count = 0
        self.total_ns = 0
        self.longest: list[tuple[int, int, Collective]] = []
        self.must: list[Collective] = []
        """Journaled as open already, so their spans follow in any case."""

    def add(self, collective: Collective) -> None:
        """Take in one that ended; of equal length the earlier stays."""
        duration = collective.ended - collective.began
        self.count += 1
        self.total_ns += duration
        if collective.span_id:
            self.must.append(collective)
            return
        heapq.heappush(self.longest, (duration, -self.count, collective))
        if len(self.longest) > SPANS_PER_STAGE:
            heapq.heappop(self.longest)

    def attributes(self) -> dict[str, Value]:
        """What the stage says of its collectives."""
        omitted = self.count - len(self.longest) - len(self.must)
        known: dict[str, Value] = {vocabulary.COMM_COUNT: self.count, vocabulary.COMM_TIME: self.total_ns / 1e9}
        if omitted:
            known[vocabulary.COMM_OMITTED] = omitted
        return known

    def spans(self) -> list[Stage]:
        """Make the spans of the longest ones."""
        return [item.as_stage() for item in (*self.must, *(row[2] for row in self.longest))]


def input_bytes(args: tuple[Any, ...], position: int) -> int:
    """Sum the bytes of the tensors at one position of a collective's arguments; 0 where there are none.

    Reads shapes, never data. Cost: 0.4 us for a tensor.
    """
    value = args[position] if len(args) > position else None
    tensors = value if isinstance(value, (list, tuple)) else (value,)
    size = 0
    for tensor in tensors[:1024]:
        nbytes = getattr(tensor, "nbytes", 0)
        size += nbytes if isinstance(nbytes, int) else 0
    return size
