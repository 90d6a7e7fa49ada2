"""What a finished span still lacks, and who adds it: memory, device, requests, collectives."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from otel_rl import vocabulary
from otel_rl.analysis.memory import PeakBounds, activation_peak, stage_peak
from otel_rl.comm.collectives import StageCollectives
from otel_rl.guard import attempt
from otel_rl.metrics.record import Fold
from otel_rl.probes.device_time import ASYNCHRONOUS
from otel_rl.probes.memory_numbers import memory_attributes
from otel_rl.process.state import Trace
from otel_rl.records import Attributes, Labels, Point, Span, Value
from otel_rl.requests.histograms import RequestFold
from otel_rl.requests.parents import ROLLOUTS
from otel_rl.trace.stage import Stage
from otel_rl.vocabulary import CONTAINER

NOTHING: Final[Mapping[str, Value]] = {}
PASSES: Final = (vocabulary.FORWARD, vocabulary.BACKWARD)
CLOSING: Final = (CONTAINER, *ROLLOUTS)
"""How the names of stages begin that may have been a rollout or a step."""


DEVICE_TIMES: Final = (
    (vocabulary.DEVICE_DURATION, vocabulary.DEVICE_TIME),
    (vocabulary.COMM_EXPOSED_TIME, vocabulary.COMM_EXPOSED),
)
"""Histograms, and the attributes of stages that they count."""


class Completer(Protocol):
    """Adds to the spans of stages what is known only after they end; one line in ``Dispatcher`` makes it work."""

    def concerns(self, name: str) -> bool:
        """Return whether it completes stages of this name; asked once for each name."""

    def complete(self, stage: Stage, spans: list[Span]) -> Mapping[str, Value]:
        """Return the attributes that it adds; ``spans`` takes spans that belong inside the stage.

        It is called for every stage once, also for those that are not sampled.
        """


class MemoryCompleter:
    """Turns the readings at both ends of a stage into attributes."""

    def concerns(self, name: str) -> bool:
        return True

    def complete(self, stage: Stage, spans: list[Span]) -> Mapping[str, Value]:
        after = stage.after
        # A reading serves for several short stages; what did not change is not worth an attribute.
        if after is None or (stage.before is after and not stage.coarse):
            return NOTHING
        return memory_attributes(stage.before, after)


class ClockCompleter:
    """Marks stages whose duration is the host's, since a device does their work afterwards."""

    def concerns(self, name: str) -> bool:
        return name in ASYNCHRONOUS

    def complete(self, stage: Stage, spans: list[Span]) -> Mapping[str, Value]:
        return {vocabulary.CLOCK: "host"} if _uses_device(stage) else NOTHING


class RequestCompleter:
    """Adds what the requests of a rollout or a step were together, and the spans of those that are kept."""

    def __init__(self, requests: RequestFold) -> None:
        self._requests = requests

    def concerns(self, name: str) -> bool:
        return name.startswith(CLOSING)

    def complete(self, stage: Stage, spans: list[Span]) -> Mapping[str, Value]:
        return attempt("count", "requests", self._requests.ended, stage, spans) or NOTHING


class CollectiveCompleter:
    """Adds how many collectives ran directly inside a stage, their time, and the longest of them as spans."""

    def __init__(self) -> None:
        self.by_stage: dict[Stage | None, StageCollectives] = {}

    def concerns(self, name: str) -> bool:
        return True

    def complete(self, stage: Stage, spans: list[Span]) -> Mapping[str, Value]:
        inside = self.by_stage.pop(stage, None)
        if inside is None or stage.trace is None or not stage.trace.sampled:
            return NOTHING
        inside.add_up()
        spans.extend(inside.spans())
        return inside.attributes() if inside.count else NOTHING

    def sweep(self, opened: Collection[Any], pending: Collection[Stage], spans: list[Span]) -> None:
        """Emit collectives whose stage ended before them, in another thread, instead of keeping them for ever.

        Not those of a stage that was open when the queue was drained: it may have ended since, and comes in the next
        cycle with the rest of its collectives.
        """
        for inside in self.by_stage.values():
            inside.add_up()
        awaited = {*opened, *pending}
        over = [stage for stage in self.by_stage if stage is None or (stage.ended and stage not in awaited)]
        for stage in over:
            inside = self.by_stage.pop(stage)
            if stage is not None and stage.trace is not None and stage.trace.sampled:
                spans.extend(inside.spans())


@dataclass(slots=True)
class _MicroBatches:
    pending: int = 0
    """Forwards without a backward yet."""
    forward: Stage | None = None
    """The last of them."""
    is_mixed: bool = False
    """Whether more than one was on its way."""
    highest: int = 0
    end_ns: int = 0


class ActivationCompleter:
    """Adds to a backward what the activations of its micro-batch took: the peak within its forward and itself.

    A backward is paired if one forward of training alone came before it. With several on their way (a pipeline, two
    losses) no peak is that of one micro-batch, and none is added until as many backwards have followed.
    """

    def __init__(self, emit: Callable[[Point], object]) -> None:
        self._emit = emit
        self._steps: dict[Trace | None, _MicroBatches] = {}
        """Open steps: stages of several come by turns if the device is slow."""

    def concerns(self, name: str) -> bool:
        return name in PASSES

    def complete(self, stage: Stage, spans: list[Span]) -> Mapping[str, Value]:
        if not _uses_device(stage):
            return NOTHING
        step = self._steps.get(stage.trace)
        if stage.name == vocabulary.FORWARD:
            if (stage.attributes or {}).get(vocabulary.MODE) != "eval":
                if step is None:
                    step = self._steps[stage.trace] = _MicroBatches()
                step.is_mixed |= step.pending > 0
                step.pending += 1
                step.forward = stage
        elif step is not None and step.pending:
            step.pending -= 1
            forward, step.forward = step.forward, None
            peak = None if step.is_mixed or forward is None else _peak(forward, stage)
            step.is_mixed &= step.pending > 0
            if peak is not None:
                step.highest, step.end_ns = max(step.highest, peak.low), stage.end_ns
                return {vocabulary.ACTIVATION_PEAK: peak.low, vocabulary.ACTIVATION_PEAK_EXACT: peak.is_exact}
        return NOTHING

    def fold(self, current: Trace | None, unfinished: Iterable[Any]) -> None:
        """Emit the highest of each step that is over."""
        goes_on = {stage.trace for stage in unfinished if stage.name in PASSES} | {current}
        for trace in [trace for trace in self._steps if trace not in goes_on]:
            step = self._steps.pop(trace)
            if step.highest:
                self._emit(Point(vocabulary.ACTIVATION, step.highest, step.end_ns))


def _uses_device(stage: Stage) -> bool:
    after = stage.after
    return (after is not None and after[1] is not None) or vocabulary.DEVICE_TIME in (stage.attributes or NOTHING)


def _peak(forward: Stage, backward: Stage) -> PeakBounds | None:
    within = [_within(stage) for stage in (forward, backward)]
    known = [one for one in within if one is not None]
    first = forward.before and forward.before[1]
    ends = [stage.before and stage.before[1] for stage in (forward, backward)]
    if first is None or len(known) < len(within) or len({end and end.device for end in ends}) > 1:
        return None
    both = PeakBounds(max(one.low for one in known), max(one.high for one in known))
    return activation_peak(both, first.allocated)


def _within(stage: Stage) -> PeakBounds | None:
    start, end = stage.before and stage.before[1], stage.after and stage.after[1]
    if start is None or end is None:
        return None
    return stage_peak(start.allocated_peak, end.allocated_peak, start.allocated, end.allocated)


def fold_device_time(fold: Fold, attributes: Attributes, labels: Labels) -> None:
    """Count the time that the device took for a stage, and what of it was exposed communication, as far as known."""
    for metric, key in DEVICE_TIMES:
        seconds = attributes.get(key)
        if isinstance(seconds, float):
            fold.durations(metric, (seconds,), labels)
