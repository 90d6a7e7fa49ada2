"""Where the time of this rank's steps went, folded in the flusher as stages end: goodput, activity, bubbles.

All of it is of this rank alone and by its own clock. One moment counts once, however stages nest and overlap: what it
counts as is decided by ``analysis.goodput``, ``analysis.intervals`` and ``analysis.bubbles``. Threads count alike: a
moment in which another thread has a stage open counts as that stage, too.

Cost: 0.3 us a stage, 0.3 us a collective, and 11 to 28 us a step (``benchmarks/step_time.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import add
from typing import Any, Final, TypeAlias

from otel_rl import vocabulary as v
from otel_rl.analysis.bubbles import DENOMINATOR, REASONS, bubbles, reason_of
from otel_rl.analysis.goodput import ACTIVE, ACTIVITIES, COMM, IDLE, INSEPARABLE, Kind, is_background, kind_of
from otel_rl.analysis.intervals import Interval, partition
from otel_rl.comm.collectives import Collective
from otel_rl.guard import errors
from otel_rl.metrics.record import Fold
from otel_rl.process.state import Trace, state
from otel_rl.records import Labels, Point
from otel_rl.trace.guest import GuestStep, guest
from otel_rl.trace.stage import Stage
from otel_rl.vocabulary import CONTAINER

MOST_STEPS: Final = 64
"""Traces whose container may be open at once; the oldest beyond that is given up."""
MOST_STAGES: Final = 50_000
"""Stages of one trace, about 8 MB, and as many collectives; the older half of more is given up."""
MOST_NAMES: Final = 20_000

KINDS: Final = tuple(Kind)
"""Goodput's layers, in order of priority; a stage has its place in them."""
OTHER: Final = KINDS.index(Kind.OTHER)

StageTime: TypeAlias = tuple[int, int, int, int, str]
"""Layer of goodput, layer of activity, begin and end (monotonic, ns), reason of an idle stage."""
SPECIAL: Final = (-1, -1)
"""Layers of a name whose stages depend on their attributes."""

KIND_LABELS: Final[tuple[Labels, ...]] = tuple(((v.GOODPUT_KIND, kind.value),) for kind in KINDS)
ACTIVITY_LABELS: Final[tuple[Labels, ...]] = tuple(((v.ACTIVITY, name),) for name in ACTIVITIES)


class EndedStages:
    """What has ended in one step, or below a span of another library."""

    __slots__ = ("collectives", "stages")

    def __init__(self) -> None:
        self.stages: list[StageTime] = []
        self.collectives: list[Interval] = []

    def take(self, other: EndedStages | None) -> None:
        """Add what has ended elsewhere."""
        if other is not None:
            self.stages += other.stages
            self.collectives += other.collectives


class StepTime:
    """Keeps what ended in each open step of this rank, and emits its numbers when the step ends."""

    def __init__(self, fold: Fold) -> None:
        self._fold = fold
        self._steps: dict[Trace | None, EndedStages | None] = {}
        """What has ended in each trace of ours, oldest first; None once its container has ended. No key is None."""
        self._foreign: dict[int, EndedStages] = {}
        """What ended below a span of another library, by trace id: part of a step if that has the same trace."""
        self._guest = EndedStages()
        """What has ended in the calls of a rank without a loop, in whichever step of its driver."""
        self._layers: dict[str, tuple[int, int]] = {}
        self._total_ns = [0] * len(KINDS)
        self._folded_ns = [0] * len(KINDS)
        """How much of the total the metric has."""
        self._until = 0
        self._seen: set[str] = set()
        """Activities that have occurred: the steps after have a point of each, of 0 too."""
        self._waited: set[str] = set()

    def add(self, records: Iterator[Any]) -> None:
        """Add the stages and collectives among what has ended; a container emits the numbers of its step."""
        trace: Trace | None = None
        ended: EndedStages | None = None
        for record in records:
            if record.__class__ is Stage:
                stage = record
            elif (
                record.__class__ is Collective
                and (parent := record.stage) is not None
                and (parent.name != v.CHECKPOINT or not is_background(parent.name, parent.attributes or {}))
            ):
                stage = parent
            else:
                if record.__class__ is GuestStep:
                    self._end_guest(record)
                    trace = ended = None
                continue
            if stage.trace is not trace:
                trace = stage.trace
                ended = self._steps.get(trace) or self._place(trace)
            if ended is None:
                continue
            if stage is not record:
                ended.collectives.append((record.began, record.ended))
                continue
            kind, activity = self._layers.get(stage.name) or self._layers_of(stage.name)
            if kind < 0:
                self._special(stage, ended)
                trace = ended = None  # it may have been the end of its step
            else:
                self._stage(stage, kind, activity, ended.stages)
        self._drop_excess()
        self._fold_totals()

    def _drop_excess(self) -> None:
        for ended in (*self._steps.values(), *self._foreign.values(), self._guest):
            if ended is not None:
                _drop_half(ended.stages)
                _drop_half(ended.collectives)

    def _stage(self, stage: Stage, kind: int, activity: int, stages: list[StageTime]) -> None:
        began, ended, attributes = stage.began, stage.ended, stage.attributes
        if attributes and v.COMM_HIDDEN in attributes and attributes[v.COMM_HIDDEN] is True:
            activity = INSEPARABLE
        # What ended inside, and claims nothing that this stage does not claim, is not needed any more.
        while stages:
            last = stages[-1]
            if last[2] < began or last[0] < kind or last[1] < activity or last[3] > ended:
                break
            stages.pop()
        stages.append((kind, activity, began, ended, ""))

    def _place(self, trace: Trace | None) -> EndedStages | None:
        """Find or make what is kept of a trace; None where no step of this process can count it."""
        if trace is None:
            return None
        if trace.is_carried:
            return self._guest if guest.has_rank else None
        if not trace.step:
            ended = self._foreign.get(trace.trace_id)
            if ended is None:
                if len(self._foreign) >= MOST_STEPS:
                    del self._foreign[next(iter(self._foreign))]
                ended = self._foreign[trace.trace_id] = EndedStages()
            return ended
        if trace in self._steps:
            return self._steps[trace]
        if trace.is_phase:
            return EndedStages()  # all of it is overhead, whatever ran
        if len(self._steps) >= MOST_STEPS and self._steps.pop(next(iter(self._steps))) is not None:
            errors["count the time of a step that does not end"] += 1
        made = self._steps[trace] = EndedStages()
        return made

    def _layers_of(self, name: str) -> tuple[int, int]:
        layers = (KINDS.index(kind_of(name)), ACTIVE)
        if name in (v.IDLE, v.CHECKPOINT) or name.startswith(CONTAINER):
            layers = SPECIAL
        if len(self._layers) < MOST_NAMES:
            self._layers[name] = layers
        return layers

    def _special(self, stage: Stage, ended: EndedStages) -> None:
        attributes = stage.attributes or {}
        kind, activity, reason = OTHER, ACTIVE, ""
        if stage.name == v.IDLE:
            kind, activity = KINDS.index(Kind.IDLE), IDLE
            reason = reason_of(str(attributes.get(v.IDLE_REASON, "")))
        elif stage.name == v.CHECKPOINT:
            if is_background(stage.name, attributes):
                return  # it is written in the background; what delays training is a stage of its own
            kind = KINDS.index(Kind.OVERHEAD)
        elif stage.coarse:  # otherwise it is a user's own of that name
            self._end(stage, ended)
            return
        if activity == ACTIVE and attributes.get(v.COMM_HIDDEN) is True:
            activity = INSEPARABLE
        ended.stages.append((kind, activity, stage.began, stage.ended, reason))

    # --- when a container ends ----------------------------------------------------------------------------------------

    def _end(self, container: Stage, ended: EndedStages) -> None:
        trace = container.trace
        if trace is None:
            return
        self._steps[trace] = None
        ended.take(self._foreign.pop(trace.trace_id, None))
        attributes = container.attributes or {}
        is_step = v.ITERATION in attributes
        has_time = is_step and container.status is None and v.TRUNCATED not in attributes
        self._spend(ended, (container.began, container.ended), trace.anchor, is_step=is_step, has_time=has_time)

    def _end_guest(self, step: GuestStep) -> None:
        ended, self._guest = self._guest, EndedStages()
        ended.take(self._foreign.pop(step.trace.trace_id, None))
        anchor = step.trace.anchor
        if not self._until:  # its set-up is in no container here: what called it is the driver's
            self._spend(EndedStages(), (state.started_ns, step.began), anchor, is_step=False, has_time=False)
        self._spend(ended, (step.began, step.ended), anchor, is_step=True, has_time=True)

    def _spend(self, ended: EndedStages, window: Interval, anchor: int, *, is_step: bool, has_time: bool) -> None:
        stages = ended.stages
        if not is_step:
            stages.append((KINDS.index(Kind.OVERHEAD), ACTIVE, *window, ""))
        spent: list[list[Interval]] = [[] for _ in range(OTHER)]
        layers: list[list[Interval]] = [[] for _ in range(len(ACTIVITIES) - 1)]
        layers[COMM] = ended.collectives
        waits: dict[str, list[Interval]] = {}
        for kind, activity, begin, end, reason in stages:
            interval = begin, end
            layers[activity].append(interval)
            if kind != OTHER:
                spent[kind].append(interval)
            if reason:
                waits.setdefault(reason, []).append(interval)
        self._count(partition(spent, *window), window)
        if has_time:
            time_ns = window[1] + anchor
            self._activity(layers, window, time_ns)
            self._waited.update(waits)
            if self._waited:
                self._bubbles(waits, window, time_ns)

    def _count(self, parts_ns: Sequence[int], window: Interval) -> None:
        """Add to the time by kind, in ns, so that the kinds add up however long a run lasts.

        After a step that raised, nothing counts until the next one begins: that time is other.
        """
        between_ns = max(0, window[0] - self._until) if self._until else 0
        self._until = max(self._until, window[1])
        self._total_ns = list(map(add, self._total_ns, parts_ns))
        self._total_ns[OTHER] += between_ns

    def _fold_totals(self) -> None:
        for place, (total_ns, folded_ns) in enumerate(zip(self._total_ns, self._folded_ns, strict=True)):
            if total_ns != folded_ns:
                self._fold.total(v.GOODPUT_TIME, total_ns / 1e9, KIND_LABELS[place])
        self._folded_ns = list(self._total_ns)

    def _activity(self, layers: Sequence[list[Interval]], window: Interval, time_ns: int) -> None:
        for name, labels, part_ns in zip(ACTIVITIES, ACTIVITY_LABELS, partition(layers, *window), strict=True):
            if part_ns or name in self._seen:
                self._seen.add(name)
                self._fold.point(Point(v.ACTIVITY_TIME, part_ns / 1e9, time_ns, labels))

    def _bubbles(self, waits: Mapping[str, list[Interval]], window: Interval, time_ns: int) -> None:
        step_ns = window[1] - window[0]
        for reason, waited_ns in zip(REASONS, bubbles(window, waits), strict=True):
            if reason in self._waited and step_ns > 0:
                labels: Labels = ((v.IDLE_REASON, reason), (v.BUBBLE_DENOMINATOR, DENOMINATOR))
                self._fold.point(Point(v.BUBBLE_RATIO, waited_ns / step_ns, time_ns, labels))


def _drop_half(stages: list[Any]) -> None:
    """Where there are too many stages or collectives, the older half is given up; its time counts as other."""
    if len(stages) > MOST_STAGES:
        errors["count the time of all stages of a step"] += len(stages) // 2
        del stages[: len(stages) // 2]
