"""What the flusher does with one record: fold it, complete it, or keep it pending until its device has answered."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from otel_rl.clock import monotonic_ns
from otel_rl.comm.collectives import Collective, CollectiveTotals, FailedCollective, Forgotten, StageCollectives
from otel_rl.flusher.completers import (
    ActivationCompleter,
    ClockCompleter,
    CollectiveCompleter,
    Completer,
    MemoryCompleter,
    RequestCompleter,
    fold_device_time,
)
from otel_rl.flusher.open_stages import OpenStages
from otel_rl.flusher.stage_metrics import StageMetrics
from otel_rl.flusher.status_page import StatusPage
from otel_rl.flusher.step_time import StepTime
from otel_rl.flusher.worker_memory import WorkerMemory
from otel_rl.guard import guard
from otel_rl.layers.step_lines import StepLines
from otel_rl.metrics.record import Fold
from otel_rl.observing.book import book
from otel_rl.records import Count, Deferred, FinishedRequests, Log, Measured, PendingAttributes, Point, Span
from otel_rl.requests.histograms import RequestFold
from otel_rl.requests.parents import TRAINING
from otel_rl.requests.queue import EngineLoad, KvCache
from otel_rl.trace.guest import GuestStep, open_waits
from otel_rl.trace.memory import tracing
from otel_rl.trace.own_loop import WORKING
from otel_rl.trace.stage import Stage
from otel_rl.vocabulary import SAMPLE_RECORD

PENDING_LIMIT_NS: Final = 10_000_000_000
"""A stage waits so long for numbers of its device, and then goes without them."""
CHUNK: Final = 500
"""Records that are dispatched together: so few that they stay in the processor's cache."""
MOST_NAMES: Final = 20_000

Completers = tuple[Callable[..., Any], ...]


@dataclass(slots=True)
class Dispatched:
    """What the records of one cycle have become."""

    spans: list[Span] = field(default_factory=list)
    logs: list[Log] = field(default_factory=list)
    samples: list[Log] = field(default_factory=list)
    """Records of samples, which readers of other records need not decode."""
    foreign: list[Any] = field(default_factory=list)
    """Records of other libraries."""


class Dispatcher:
    """Hands each record to what folds or completes it; used by the flusher only."""

    def __init__(self, fold: Fold) -> None:
        self.requests = RequestFold(fold)
        self.opened = OpenStages()
        self.page = StatusPage()
        self._fold = fold
        self._metrics = StageMetrics()
        self._times = StepTime(fold)
        self._totals = CollectiveTotals()
        self._memory = WorkerMemory()
        self._activations = ActivationCompleter(fold.point)
        self._lines = StepLines(fold)
        self._collectives = CollectiveCompleter()
        # No completer sees what another one adds. So their order decides only which of two that add the same attribute
        # counts (the last one), and the order of attributes and spans in the journal. What the program itself says of a
        # stage counts before all.
        self._completers: tuple[Completer, ...] = (
            MemoryCompleter(),
            self._activations,
            ClockCompleter(),
            RequestCompleter(self.requests),
            self._lines,
            self._collectives,  # last: `_choose` leaves it out
        )
        self._by_name: tuple[dict[str, Completers], dict[str, Completers]] = {}, {}
        """Completers by name of the stage, without and with the one of collectives: a stage may have none, and a call
        for nothing costs as much as one that adds."""
        self._pending: list[Stage] = []
        """Finished stages that wait for numbers of their device."""
        self._ended: list[Stage] = []
        self._is_asked = False

    def dispatch(
        self, opened: Collection[Any], records: list[Any], *, is_asked: bool, is_all: bool, is_last: bool
    ) -> Dispatched:
        """Handle the records of one cycle; one that fails takes no other with it.

        Cost: 1.5 us a span of 15 attributes (``benchmarks/dispatch.py``).

        Args:
            opened: stages and collectives that are open.
            records: what ended or was counted, in order.
            is_asked: somebody waits for this cycle: what was recorded must be on disk after it.
            is_all: the queue holds no record of a stage that has ended.
            is_last: the journal is closed after it.
        """
        self._is_asked = is_asked
        result = Dispatched()
        with guard("remember stages"):
            self.requests.remember(opened, records)
        pending, self._pending = self._pending, []
        self._dispatch_chunk(pending, [], result)
        for first in range(0, len(records), CHUNK):
            chunk = records[first : first + CHUNK]
            self._dispatch_chunk(chunk, chunk, result)
        with guard("see what goes on"):
            self.page.touch(records)
        self._fold_cycle(opened, result, is_all=is_all, is_last=is_last)
        with guard("name open stages"):
            waits = open_waits()
            result.logs += self.opened.keep({*opened, *self._pending})
            result.logs += self.opened.logs([*opened, *waits], records) + self.opened.logs(self._pending, [])
        return result

    def _fold_cycle(self, opened: Collection[Any], result: Dispatched, *, is_all: bool, is_last: bool) -> None:
        with guard("count durations"):
            self._metrics.fold(self._fold, self.page.normal, is_last=is_last)
        with guard("count activations"):
            if is_all:
                goes_on = None if is_last or tracing.container is None else tracing.container.trace  # also of a worker
                self._activations.fold(goes_on, [*opened, *self._pending])
        with guard("read the memory of a worker"):
            self._memory.fold(self._fold, is_last=is_last)
        with guard("count collectives"):
            self._totals.fold(self._fold, self.page.normal_collective)
            if is_all:
                self._collectives.sweep(opened, self._pending, result.spans)
        with guard("count requests"):
            if is_all:
                self.requests.sweep(opened, self._pending, result.spans, is_last=is_last)
        if book.is_open:
            with guard("count what was observed"):
                traces = {stage.trace for stage in self._pending}
                self._dispatch_made(book.due(traces, self.requests.stages, is_last=is_last and is_all), result)
        with guard("write the lines of steps"):
            self._dispatch_made(
                self._lines.fold(is_asked=is_all and self._is_asked, is_last=is_all and is_last), result
            )

    def _dispatch_chunk(self, records: list[Any], new: list[Any], result: Dispatched) -> None:
        _each("count what a stage worked off", self._work, new)  # first: the end of its step is among the records
        _each("count a record", self._dispatch, records, result)
        ended, self._ended = self._ended, []
        _each("count the duration of a stage", self._metrics.add, ended)
        if book.is_open:
            _each("count a stage's operations", book.ended, ended)
        _each("count the time of a stage", self._times.add, new)
        _each("count a collective", self._totals.add, [one for one in new if one.__class__ is Collective])

    def _work(self, records: Iterable[Any]) -> None:
        """Count what the stages of a loop without a framework worked off, but not those of evaluations."""
        for record in records:
            trace = record.trace if record.__class__ is Stage else None
            if trace is not None and trace.work is not None and record.name in WORKING:
                purpose, parents = self.requests.stages.purpose_and_ancestors(record)
                if purpose == TRAINING:
                    trace.work.add(record, parents)

    def _dispatch(self, records: Iterable[Any], result: Dispatched) -> None:
        point, by_stage = self._fold.point, self._collectives.by_stage
        for record in records:
            kind = type(record)
            if kind is Stage:
                if record.attributes.__class__ is PendingAttributes and self._is_pending(record):
                    self._pending.append(record)
                else:
                    self._complete(record, result.spans)
            elif kind is Deferred:
                self._dispatch_made(record.function(*record.arguments), result)
            elif kind is Point:
                point(record)
            elif kind is Collective:
                inside = by_stage.get(record.stage)
                if inside is None:
                    inside = by_stage[record.stage] = StageCollectives()
                inside.ended.append(record)
            else:
                self._dispatch_other(kind, record, result)

    def _dispatch_made(self, made: Iterable[Any], result: Dispatched) -> None:
        for other in self._fold.add(made):
            self._dispatch_other(type(other), other, result)

    def _dispatch_other(self, kind: type, record: Any, result: Dispatched) -> None:
        if kind is Count:
            self._fold.count(*record)
        elif kind is Measured:
            self._fold.durations(*record)
        elif kind is Log:
            (result.samples if record.event_name == SAMPLE_RECORD else result.logs).append(record)
        elif kind is GuestStep:
            self._metrics.add_step(record.ended - record.began)
            book.end(record.container)
            self._dispatch_made(record.points(), result)
        elif kind is FinishedRequests:
            self.requests.read(record, hurry=self._is_asked)
        elif kind is EngineLoad:
            self.requests.load(record)
        elif kind is KvCache:
            self.requests.kv_cache(record)
        elif kind is Forgotten:
            by_stage = self._collectives.by_stage
            by_stage.setdefault(record.stage, StageCollectives()).forgotten.append(record)
        elif kind is FailedCollective:
            self._collectives.by_stage.setdefault(record.stage, StageCollectives()).ended.append(record)
            self._totals.add(iter((record,)))
        else:
            result.foreign.append(record)

    def _complete(self, stage: Stage, spans: list[Span]) -> None:
        if stage.attributes.__class__ is PendingAttributes:
            fold_device_time(self._fold, stage.attributes or {}, self._metrics.labels(stage))
        found: Any = None
        has_collectives = bool(self._collectives.by_stage)
        for complete in self._by_name[has_collectives].get(stage.name) or self._choose(stage.name, has_collectives):
            more = complete(stage, spans)
            if more:
                found = {**found, **more} if found else more
        self._ended.append(stage)
        if stage.trace is None or not stage.trace.sampled:
            return
        if found:
            stage.attributes = {**found, **(stage.attributes or {})}
        spans.append(stage)

    def _choose(self, name: str, has_collectives: bool) -> Completers:
        completers = self._completers if has_collectives else self._completers[:-1]
        found = tuple(one.complete for one in completers if one.concerns(name))
        if len(self._by_name[has_collectives]) < MOST_NAMES:
            self._by_name[has_collectives][name] = found
        return found

    def _is_pending(self, stage: Stage) -> bool:
        """Return whether to wait for the device; the journal names the stage as open meanwhile."""
        attributes = cast("PendingAttributes", stage.attributes)
        if (attributes.is_complete and attributes.is_timed) or self._is_asked:
            return False
        return monotonic_ns() - stage.ended < PENDING_LIMIT_NS


def _each(what: str, handle: Callable[..., object], items: Sequence[Any], *more: Any) -> None:
    """Hand items over together; after one that fails it goes on with the next."""
    remaining = iter(items)
    for _ in range(len(items) + 1):  # at worst each of them fails
        with guard(what):
            handle(remaining, *more)
            return
