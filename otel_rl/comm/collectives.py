"""Collectives that Python sees: all of them in metrics, the longest of each stage as spans inside it."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator

from otel_rl import vocabulary
from otel_rl.analysis.goodput import is_background
from otel_rl.clock import monotonic_ns
from otel_rl.comm.groups import Group
from otel_rl.comm.memory import comm
from otel_rl.ids import random_bits
from otel_rl.metrics.record import Fold
from otel_rl.process.state import QUEUE_LIMIT, state
from otel_rl.records import Labels, SpanEvent, SpanLink, Value
from otel_rl.trace.current import CURRENT
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage, innermost

SPANS_PER_STAGE = 32


class Collective:
    """One call of a collective on this rank, from its begin; cheaper than a stage, since most never become a span."""

    name: str = vocabulary.COMM
    kind: int = 1
    events: list[SpanEvent] | None = None
    links: list[SpanLink] | None = None
    status: tuple[int, str] | None = None

    __slots__ = (
        "began", "bytes", "ended", "error", "goes_on", "group", "is_launch", "is_wait", "operation", "sequence",
        "span_id", "stage",
    )  # fmt: skip

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
        self.is_launch = False
        """Whether a device does it, after the host has asked for it."""
        stage: Stage | None = CURRENT.get()
        if stage is None or stage.ended:
            stage = innermost() or _stage_of_bare_thread()
        self.stage = stage
        comm.seen_in = self.stage
        self.span_id = 0
        """Given by the flusher when it finds the collective open: then it must become a span."""
        self.ended = 0
        self.began = monotonic_ns()
        tracing.open[self] = None

    def close(self) -> None:
        """End now; never raises. Cost of open and close: 0.6 us."""
        self.ended = monotonic_ns()
        opened = tracing.open
        if self in opened:
            if state.awake and len(state.queue) < QUEUE_LIMIT:
                state.queue.append(self)
            else:
                state.add(self)
            opened.pop(self, None)

    def fail(self, error: BaseException) -> None:
        """End now with an exception; it becomes a span however short it was."""
        self.error = type(error).__qualname__
        self.span_id = self.span_id or random_bits(64) or 1
        self.__class__ = FailedCollective
        self.close()

    def forget(self) -> None:
        """Leave no record: it has been launched only, and its wait will be one; what was journaled as open stays."""
        tracing.open.pop(self, None)  # first: whoever gives the span's id afterwards sees it, and says nothing
        if self.span_id:
            self.__class__ = Forgotten
            self.is_wait = True  # no rank is compared by it
            self.ended = monotonic_ns()
            state.add(self)

    @property
    def labels(self) -> Labels:
        labels: Labels = ((vocabulary.COMM_OPERATION, self.operation),)
        if self.group is not None:
            labels += ((vocabulary.COMM_GROUP_KIND, self.group.kind),)
        if self.is_wait:
            labels += ((vocabulary.COMM_ASYNC, True),)
        return (*labels, (vocabulary.CLOCK, "host")) if self.is_launch else labels

    @property
    def attributes(self) -> dict[str, Value]:
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
        if self.is_launch:
            known[vocabulary.CLOCK] = "host"
        return known

    # --- as the encoder reads it --------------------------------------------------------------------------------------

    @property
    def trace_id(self) -> int:
        return self.stage.trace_id if self.stage is not None else 0

    @property
    def parent_id(self) -> int:
        return self.stage.span_id if self.stage is not None else 0

    @property
    def start_ns(self) -> int:
        return self.began + self.stage.trace.anchor if self.stage is not None and self.stage.trace else 0

    @property
    def end_ns(self) -> int:
        return self.ended + self.stage.trace.anchor if self.stage is not None and self.stage.trace else 0

    def as_span(self) -> Collective:
        self.span_id = self.span_id or random_bits(64) or 1
        return self


class Forgotten(Collective):
    """The launch of a collective that was journaled as open: its span gets an end, and it counts nowhere."""

    __slots__ = ()


class FailedCollective(Collective):
    """A collective that raised an exception."""

    status = (2, "")

    __slots__ = ()

    @property
    def attributes(self) -> dict[str, Value]:
        return {**super().attributes, vocabulary.ERROR_TYPE: self.error}


class CollectiveTotals:
    """What one cycle of the flusher counts of collectives: metrics take many values at once for less."""

    def __init__(self) -> None:
        self._by_series: defaultdict[tuple[str, Group | None, bool, bool], list[Collective]] = defaultdict(list)

    def add(self, collectives: Iterator[Collective]) -> None:
        by_series = self._by_series
        for one in collectives:
            by_series[one.operation, one.group, one.is_wait, one.is_launch].append(one)

    def fold(self, fold: Fold, normal: Callable[[str, list[float]], object]) -> None:
        """Count them, and pass on the durations of each operation."""
        by_series, self._by_series = self._by_series, defaultdict(list)
        for some in by_series.values():
            labels = some[0].labels
            durations = [(one.ended - one.began) / 1e9 for one in some]
            normal(some[0].operation, durations)
            fold.durations(vocabulary.COMM_DURATION, durations, labels)
            size = sum([one.bytes for one in some])
            if size:
                fold.count(vocabulary.COMM_IO, size, labels)


class StageCollectives:
    """The collectives directly inside one stage, as far as they have ended."""

    __slots__ = ("count", "ended", "forgotten", "longest", "must", "total_ns")

    def __init__(self) -> None:
        self.count = 0
        self.total_ns = 0
        self.longest: list[Collective] = []
        self.must: list[Collective] = []
        """Journaled as open already, so their spans follow in any case."""
        self.ended: list[Collective] = []
        self.forgotten: list[Forgotten] = []

    def add_up(self) -> None:
        """Count those that ended, and keep the longest; of equal length the earlier."""
        ended, self.ended = self.ended, []
        self.count += len(ended)
        self.total_ns += sum([one.ended - one.began for one in ended])
        self.must += [one for one in ended if one.span_id]
        self.longest += [one for one in ended if not one.span_id]
        if len(self.longest) > SPANS_PER_STAGE:
            self.longest.sort(key=_duration, reverse=True)
            del self.longest[SPANS_PER_STAGE:]

    def attributes(self) -> dict[str, Value]:
        omitted = self.count - len(self.longest) - len(self.must)
        known: dict[str, Value] = {vocabulary.COMM_COUNT: self.count, vocabulary.COMM_TIME: self.total_ns / 1e9}
        if omitted:
            known[vocabulary.COMM_OMITTED] = omitted
        return known

    def spans(self) -> list[Collective]:
        return [one.as_span() for one in (*self.must, *self.longest, *self.forgotten)]


def _duration(collective: Collective) -> int:
    return collective.ended - collective.began


def _stage_of_bare_thread() -> Stage | None:
    """Find the parent of a collective on a thread that no stage was opened on.

    The backward of a device runs on threads of autograd's own, which have no context: what they call belongs to the
    open backward, if there is but one. Any other thread's belongs to the asynchronous checkpoint that is open: torch
    writes it on such a thread, with collectives that hold no step up; else to the container of this rank.
    """
    torch = sys.modules.get("torch")
    opened = [one for one in tracing.open.copy() if isinstance(one, Stage)]
    if torch is not None and torch._C._current_graph_task_id() != -1:
        backwards = [one for one in opened if one.name == vocabulary.BACKWARD]
        if len(backwards) == 1:
            return backwards[0]
    elif saved := [one for one in opened if is_background(one.name, one.attributes or {})]:
        return min(saved, key=lambda one: one.began)
    return tracing.container
