"""What the flusher does with one record: count it, complete it, or let it wait for what is still on its way."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Any, Final, cast

from otel_rl import vocabulary
from otel_rl.comm.collectives import Collective, Forgotten, InStage, Totals
from otel_rl.flusher.activations import Activations
from otel_rl.flusher.open_stages import OpenStages
from otel_rl.flusher.stage_metrics import StageMetrics
from otel_rl.flusher.step_time import StepTime
from otel_rl.guard import attempt, guard
from otel_rl.metrics.record import Fold
from otel_rl.probes.attributes import clock_attributes, device_duration, memory_attributes
from otel_rl.process.state import state
from otel_rl.records import Attributes, Count, Late, Later, Log, Noted, Point, Span
from otel_rl.requests.histograms import NOTHING, RequestFold
from otel_rl.requests.parents import ROLLOUTS, TRAINING
from otel_rl.requests.queue import KvCache, Load
from otel_rl.trace.memory import tracing
from otel_rl.trace.own_loop import WORKING
from otel_rl.trace.stage import Stage
from otel_rl.vocabulary import CONTAINER

LATE_LIMIT_NS = 10_000_000_000
"""A stage waits so long for numbers of its device, and then goes without them."""

CHUNK: Final = 500
"""Records that are taken in together."""
CLOSING: Final = (CONTAINER, *ROLLOUTS)
"""How the names of stages begin that may have been a rollout or a step."""


@dataclass(slots=True)
class Taken:
    """What the records of one cycle have become."""

    spans: list[Span] = field(default_factory=list)
    logs: list[Log] = field(default_factory=list)
    foreign: list[Any] = field(default_factory=list)
    """Records of other libraries."""


class Intake:
    """Takes records in, cycle by cycle; used by the flusher only."""

    def __init__(self, fold: Fold) -> None:
        """Begin without records.

        Args:
            fold: takes the metrics.
        """
        self.requests = RequestFold(fold)
        self.opened = OpenStages()
        self._fold = fold
        self._metrics = StageMetrics()
        self._times = StepTime(fold)
        self._totals = Totals()
        self._activations = Activations(fold.point)
        self._late: list[Stage] = []
        """Finished stages that wait for numbers of their device."""
        self._in_stage: dict[Stage | None, InStage] = {}
        self._ended: list[Stage] = []
        """What of this cycle waits for nothing."""
        self._is_asked = False

    def take(
        self, opened: Collection[Any], records: list[Any], *, is_asked: bool, is_all: bool, is_last: bool
    ) -> Taken:
        """Handle the records of one cycle; one that cannot be handled takes no other with it.

        Cost: 1.5 us a span of 15 attributes (``benchmarks/intake.py``).

        Args:
            opened: stages and collectives that are open.
            records: what ended or was counted, in order.
            is_asked: somebody waits for this cycle: what was recorded must be on disk behind it.
            is_all: no record of a stage that has ended waits behind.
            is_last: the journal is closed after it.
        """
        self._is_asked = is_asked
        taken = Taken()
        with guard("look at stages"):
            self.requests.look(opened, records)
        late, self._late = self._late, []
        self._take_some(late, [], taken)
        for first in range(0, len(records), CHUNK):
            some = records[first : first + CHUNK]
            self._take_some(some, some, taken)
        with guard("count durations"):
            self._metrics.fold(self._fold, is_last=is_last)
        with guard("tell activations"):
            if is_all:
                goes_on = None if is_last or tracing.container is None else tracing.container.trace  # also of a worker
                self._activations.tell(goes_on, [*opened, *self._late])
        with guard("count collectives"):
            self._totals.fold(self._fold)
            if is_all:
                self._sweep(opened, taken.spans)
        with guard("count requests"):
            if is_all:
                self.requests.sweep(opened, self._late, taken.spans, is_last=is_last)
        observed = state.training.observed
        if observed is not None:
            with guard("count what was observed"):
                late_traces = {stage.trace for stage in self._late}
                due = observed.due(late_traces, self.requests.stages, is_last=is_last and is_all)
                self._sift(due, taken)
        with guard("name open stages"):
            taken.logs += self.opened.keep({*opened, *self._late})
            taken.logs += self.opened.logs(opened, records) + self.opened.logs(self._late, [])
        return taken

    def _take_some(self, records: list[Any], new: list[Any], taken: Taken) -> None:
        """Take in so few that they are in the processor's cache while one after the other looks at them."""
        _each("count what a stage worked off", self._work, new)  # first: the end of its step is among the records
        _each("count a record", self._take, records, taken)
        ended, self._ended = self._ended, []
        _each("count the duration of a stage", self._metrics.take, ended)
        if state.training.observed is not None:
            _each("count a stage's operations", state.training.observed.ended, ended)
        _each("count the time of a stage", self._times.take, new)
        _each("count a collective", self._totals.take, [one for one in new if one.__class__ is Collective])

    def _work(self, records: Iterable[Any]) -> None:
        """Have the stages of a loop without a framework tell what they worked off, but not those of evaluations."""
        for record in records:
            trace = record.trace if record.__class__ is Stage else None
            if trace is not None and trace.work is not None and record.name in WORKING:
                purpose, around = self.requests.stages.around(record)
                if purpose == TRAINING:
                    trace.work.add(record, around)

    def _take(self, records: Iterable[Any], taken: Taken) -> None:
        point = self._fold.point
        for record in records:
            kind = type(record)
            if kind is Stage:
                self._finish(record, taken)
            elif kind is Later:  # what a hot thread left
                self._sift(record.function(*record.arguments), taken)
            elif kind is Point:
                point(record)
            elif kind is Collective:
                inside = self._in_stage.get(record.stage)
                if inside is None:
                    inside = self._in_stage[record.stage] = InStage()
                inside.ended.append(record)
            else:
                self._take_other(kind, record, taken)

    def _sift(self, made: Iterable[Any], taken: Taken) -> None:
        """Take what was made later of a record: most often points and counts."""
        for other in self._fold.sift(made):
            self._take_other(type(other), other, taken)

    def _take_other(self, kind: type, record: Any, taken: Taken) -> None:
        """Take a record of which there are few."""
        if kind is Count:
            self._fold.count(*record)
        elif kind is Log:
            taken.logs.append(record)
        elif kind is Noted:
            self.requests.read(record, hurry=self._is_asked)
        elif kind is Load:
            self.requests.load(record)
        elif kind is KvCache:
            self.requests.kv_cache(record)
        elif kind is Forgotten:
            self._in_stage.setdefault(record.stage, InStage()).forgotten.append(record)
        else:
            taken.foreign.append(record)

    def _finish(self, stage: Stage, taken: Taken) -> None:
        """Count a finished stage and, if its step is sampled, complete its span."""
        if stage.attributes.__class__ is Late:
            if self._is_late(stage):
                self._late.append(stage)
                return
            device_duration(self._fold, stage.attributes or {}, self._metrics.labels(stage))
        after = stage.after
        attributes: Attributes = stage.attributes or NOTHING
        has_device = (after is not None and after[1] is not None) or vocabulary.DEVICE_TIME in attributes
        activations = self._activations.see(stage) if has_device else NOTHING
        told = NOTHING
        if stage.name.startswith(CLOSING):
            told = attempt("count", "requests", self.requests.ended, stage, taken.spans) or NOTHING
        inside = self._in_stage.pop(stage, None) if self._in_stage else None
        self._ended.append(stage)
        if stage.trace is None or not stage.trace.sampled:
            return
        has_memory = after is not None and (stage.coarse or stage.before is not after)
        clock = clock_attributes(stage.name) if has_device else NOTHING
        if has_memory or activations or told or clock:
            memory = memory_attributes(stage.before, after) if has_memory else NOTHING
            stage.attributes = {**memory, **(stage.attributes or NOTHING), **activations, **told, **clock}
        if inside is not None:
            inside.settle()
            if inside.count:
                stage.attributes = {**(stage.attributes or NOTHING), **inside.attributes()}
            taken.spans.extend(inside.spans())
        taken.spans.append(stage)

    def _is_late(self, stage: Stage) -> bool:
        """Whether to wait for attributes that are on their way from a device; as an open stage it is journaled."""
        late = cast("Late", stage.attributes)
        if (late.is_complete and late.is_timed) or self._is_asked:
            return False
        return monotonic_ns() - stage.ended < LATE_LIMIT_NS

    def _sweep(self, opened: Collection[Any], spans: list[Span]) -> None:
        """Emit collectives whose stage ended before them (another thread's), instead of keeping them for ever.

        Not those of a stage that was open when the records were taken: it may have ended since, and comes in the next
        cycle with the rest of its collectives.
        """
        for inside in self._in_stage.values():
            inside.settle()
        awaited = {*opened, *self._late}
        over = [stage for stage in self._in_stage if stage is None or (stage.ended and stage not in awaited)]
        for stage in over:
            inside = self._in_stage.pop(stage)
            if stage is not None and stage.trace is not None and stage.trace.sampled:
                spans.extend(inside.spans())


def _each(what: str, handle: Callable[..., object], items: Sequence[Any], *more: Any) -> None:
    """Hand items over together; one that fails takes no other with it: it goes on behind it."""
    waiting = iter(items)
    for _ in range(len(items) + 1):  # at worst each of them fails
        with guard(what):
            handle(waiting, *more)
            return
