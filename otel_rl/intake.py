"""What the flusher does with one record: count it, complete it, or let it wait for what is still on its way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Any, cast

from otel_rl.activation import Activations
from otel_rl.collectives import Collective, InStage, Totals
from otel_rl.complete import clock_attributes, device_duration, memory_attributes
from otel_rl.guard import attempt, guard
from otel_rl.metrics import Fold
from otel_rl.open_stages import OpenStages
from otel_rl.records import Count, Late, Later, Log, Noted, Point, Value
from otel_rl.requests import Load
from otel_rl.rollouts.fold import RequestFold
from otel_rl.runtime import state
from otel_rl.spans import Stage
from otel_rl.stage_metric import StageMetrics
from otel_rl.step_time import StepTime

LATE_LIMIT_NS = 10_000_000_000
"""A stage waits so long for numbers of its device, and then goes without them."""


@dataclass(slots=True)
class Taken:
    """What the records of one cycle have become."""

    spans: list[Stage] = field(default_factory=list)
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
        self._metrics_of = StageMetrics()
        self._times = StepTime(fold)
        self._totals = Totals()
        self._activations = Activations(fold.point)
        self._late: list[Stage] = []
        """Finished stages that wait for numbers of their device."""
        self._in_stage: dict[Stage | None, InStage] = {}
        self._is_asked = False

    def take(
        self, opened: tuple[Any, ...], records: list[Any], *, is_asked: bool, is_all: bool, is_last: bool
    ) -> Taken:
        """Handle the records of one cycle; one that cannot be handled takes no other with it.

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
        for handle, some in ((self._finish, late), (self._take, records)):
            waiting = iter(some)
            while not _each(handle, waiting, taken):
                pass  # behind the record that could not be counted
        with guard("count collectives"):
            self._totals.fold(self._fold)
            self._sweep(taken.spans)
        with guard("count requests"):
            if is_all:
                self.requests.sweep(opened, self._late, taken.spans, is_last=is_last)
        if state.training.observed is not None:
            with guard("count what was observed"):
                late_traces = {stage.trace for stage in self._late}
                for made in state.training.observed.due(late_traces, is_last=is_last):
                    self._take(made, taken)
        with guard("name open stages"):
            taken.logs += self.opened.logs(opened, records) + self.opened.logs(self._late, [])
        return taken

    def _take(self, record: Any, taken: Taken) -> None:
        kind = type(record)
        if kind is Stage:
            attempt("count", "the time of a stage", self._times.stage, record)
            self._finish(record, taken)
        elif kind is Later:
            self._do(record, taken)
        elif kind is Collective:
            self._collective(record)
        elif kind is Count:
            self._fold.count(*record)
        elif kind is Point:
            self._fold.point(record)
        elif kind is Log:
            taken.logs.append(record)
        elif kind is Noted:
            self.requests.read(record, hurry=self._is_asked)
        elif kind is Load:
            self.requests.load(record)
        else:
            taken.foreign.append(record)

    def _do(self, later: Later, taken: Taken) -> None:
        """Do what a hot thread left, and take what comes of it."""
        keep = self._fold.point
        for made in later.function(*later.arguments):
            if type(made) is Point:
                keep(made)
            else:
                self._take(made, taken)

    def _finish(self, stage: Stage, taken: Taken) -> None:
        """Count a finished stage and, if its step is sampled, complete its span."""
        if stage.attributes.__class__ is Late and self._is_late(stage):
            self._late.append(stage)
            return
        self.opened.ended(stage)
        if state.training.observed is not None:
            attempt("count", "a stage's operations", state.training.observed.ended, stage)
        metric, labels = self._metrics_of.of(stage)
        if metric:
            self._fold.duration(metric, (stage.ended - stage.began) / 1e9, labels)
        if stage.attributes.__class__ is Late:
            device_duration(self._fold, stage.name, stage.attributes, labels)
        has_device = stage.after is not None and stage.after[1] is not None
        activations = self._activations.see(stage) if has_device else {}
        told = attempt("count", "requests", self.requests.ended, stage, taken.spans) or {}
        inside = self._in_stage.pop(stage, None) if self._in_stage else None
        if stage.trace is None or not stage.trace.sampled:
            return
        complete: dict[str, Value] = {**(stage.attributes or {}), **activations, **told}
        if stage.after is not None and (stage.coarse or stage.before is not stage.after):
            complete = {**memory_attributes(stage.before, stage.after), **complete}
            if stage.after[1] is not None:
                complete.update(clock_attributes(stage.name))
        if inside is not None:
            complete.update(inside.attributes())
            taken.spans.extend(inside.spans())
        stage.attributes = complete
        taken.spans.append(stage)

    def _is_late(self, stage: Stage) -> bool:
        """Whether to wait for attributes that are on their way from a device; as an open stage it is journaled."""
        late = cast("Late", stage.attributes)
        if (late.is_complete and late.is_timed) or self._is_asked:
            return False
        return monotonic_ns() - stage.ended < LATE_LIMIT_NS

    def _collective(self, collective: Collective) -> None:
        self._totals.add(collective)
        self._times.collective(collective)
        self.opened.ended(collective)
        inside = self._in_stage.get(collective.stage)
        if inside is None:
            inside = self._in_stage[collective.stage] = InStage()
        inside.add(collective)

    def _sweep(self, spans: list[Stage]) -> None:
        """Emit collectives whose stage ended before them (another thread's), instead of keeping them for ever."""
        late = set(self._late)
        over = [stage for stage in self._in_stage if stage is None or (stage.ended and stage not in state.open)]
        for stage in [stage for stage in over if stage not in late]:
            inside = self._in_stage.pop(stage)
            if stage is not None and stage.trace is not None and stage.trace.sampled:
                spans.extend(inside.spans())


def _each(handle: Callable[[Any, Taken], None], records: Iterator[Any], taken: Taken) -> bool:
    """Handle records until one fails or none is left; say whether none is left."""
    with guard("count a record"):
        for record in records:
            handle(record, taken)
        return True
    return False
