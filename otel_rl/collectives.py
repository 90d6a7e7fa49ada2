"""Collectives that Python sees: rows, all of them in metrics, the longest of each stage as spans inside it."""

from __future__ import annotations

import heapq
import sys
from bisect import bisect_left
from itertools import repeat
from time import monotonic_ns
from typing import cast

from otel_rl import vocabulary
from otel_rl.current import CURRENT, SPAN_KEY
from otel_rl.groups import Group
from otel_rl.ids import random_bits
from otel_rl.metrics import Fold
from otel_rl.records import Labels, Value
from otel_rl.runtime import QUEUE_LIMIT, state
from otel_rl.spans import Stage

SPANS_PER_STAGE = 32


class Collective:
    """One call of a collective on this rank, from its begin; cheaper than a stage, since most never become a span."""

    __slots__ = ("began", "bytes", "ended", "goes_on", "group", "is_wait", "operation", "sequence", "span_id", "stage")

    def __init__(
        self, operation: str, size: int, group: Group | None = None, sequence: int = 0, *, is_wait: bool = False
    ) -> None:
        self.operation = operation
        self.bytes = size
        """Bytes of this rank's input; 0 where no tensor shows them."""
        self.group = group
        self.sequence = sequence
        """Which collective of its group this is, from 1; 0 where that is not known."""
        self.is_wait = is_wait
        """The wait for one that was launched before: what computing beside it did not hide."""
        self.goes_on = False
        """Whether it may go on when its call has ended."""
        span = CURRENT.get().get(SPAN_KEY)
        self.stage: Stage | None = span if span.__class__ is Stage else _stage_of_bare_thread()
        state.comm.seen_in = self.stage
        self.span_id = 0
        """Given by the flusher when it finds the collective open: then it must become a span."""
        self.ended = 0
        self.began = monotonic_ns()
        state.open.add(self)

    def close(self) -> None:
        """End now; never raises. Cost of open and close: 0.6 us."""
        self.ended = monotonic_ns()
        opened = state.open
        if self in opened:
            if state.awake and len(state.queue) < QUEUE_LIMIT:
                state.queue.append(self)
            else:
                state.add(self)
            opened.discard(self)

    def forget(self) -> None:
        """Leave no record: it has been launched only, and its wait will be one; what was journaled as open stays."""
        state.open.discard(self)  # first: whoever gives the span's id afterwards sees it, and says nothing
        if self.span_id:
            self.ended = monotonic_ns()
            state.add(self)

    @property
    def labels(self) -> Labels:
        """What its points in metrics say: few values each."""
        labels: Labels = ((vocabulary.COMM_OPERATION, self.operation),)
        if self.group is not None:
            labels += ((vocabulary.COMM_GROUP_KIND, self.group.kind),)
        return (*labels, (vocabulary.COMM_ASYNC, True)) if self.is_wait else labels

    @property
    def attributes(self) -> dict[str, Value]:
        """What the collective's span and open record say."""
        known: dict[str, Value] = {vocabulary.COMM_OPERATION: self.operation}
        if self.bytes:
            known[vocabulary.COMM_BYTES] = self.bytes
        if self.group is not None:
            known[vocabulary.COMM_GROUP] = self.group.name
            known[vocabulary.COMM_GROUP_SIZE] = self.group.size
        if self.sequence:
            known[vocabulary.COMM_SEQUENCE] = self.sequence
        if self.is_wait:
            known[vocabulary.COMM_ASYNC] = True
        return known

    def as_stage(self) -> Stage:
        """Make the span."""
        span = Stage(vocabulary.COMM, self.attributes)
        if self.stage is not None:
            span.trace, span.parent_id = self.stage.trace, self.stage.span_id
        self.span_id = span.span_id = self.span_id or random_bits(64) or 1
        span.began, span.ended = self.began, self.ended
        return span


class Totals:
    """What one cycle of the flusher counts of collectives: histograms take many values at once for less."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str, bool], tuple[list[float], list[int], Labels]] = {}
        """By what tells series apart: durations, bytes and labels."""

    def add(self, collective: Collective) -> None:
        """Take in one that ended."""
        group = collective.group
        key = collective.operation, group.kind if group is not None else "", collective.is_wait
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = [], [], collective.labels
        row[0].append((collective.ended - collective.began) / 1e9)
        row[1].append(collective.bytes)

    def fold(self, fold: Fold) -> None:
        """Hand them over to the metrics, and begin anew."""
        rows, self._rows = self._rows, {}
        boundaries = vocabulary.METRICS[vocabulary.COMM_DURATION].boundaries
        for seconds, sizes, labels in rows.values():
            counts = [0] * (len(boundaries) + 1)
            for place in map(bisect_left, repeat(boundaries), seconds):
                counts[place] += 1
            fold.merge(vocabulary.COMM_DURATION, labels, counts, (sum(seconds), min(seconds), max(seconds)))
            if any(sizes):
                fold.count(vocabulary.COMM_IO, sum(sizes), labels)


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


def _stage_of_bare_thread() -> Stage | None:
    """Find the stage around a collective on a thread that no stage was opened on.

    The backward of a device runs on threads of autograd's own, which have no context: what they call belongs to the
    open backward, if there is but one. Any other thread's belongs to the container of this rank.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch._C._current_graph_task_id() != -1:
        opened = [one for one in tuple(state.open) if isinstance(one, Stage) and one.name == vocabulary.BACKWARD]
        if len(opened) == 1:
            return opened[0]
    return cast("Stage | None", state.container)
