"""What the activations of a micro-batch take: the peak within its forward and its backward."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from otel_rl import vocabulary
from otel_rl.analysis.memory import PeakBounds, activation_peak, stage_peak
from otel_rl.process.state import Trace
from otel_rl.records import Point, Value
from otel_rl.trace.stage import Stage

PASSES: Final = (vocabulary.FORWARD, vocabulary.BACKWARD)


@dataclass(slots=True)
class _Step:
    """What is known of the micro-batches of one step."""

    waiting: int = 0
    """Forwards without a backward yet."""
    forward: Stage | None = None
    """The last of them."""
    is_mixed: bool = False
    """More than one were on their way."""
    highest: int = 0
    end_ns: int = 0
    """Of the backward that was seen last, ns since 1970."""


class Activations:
    """Pairs the forwards and backwards of a step as they end; used by the flusher only.

    A backward is paired where one forward of training alone came before it. With several on their way (a pipeline, two
    losses) no peak is that of one micro-batch, and nothing is said until as many backwards have followed.
    """

    def __init__(self, emit: Callable[[Point], object]) -> None:
        """Begin without stages.

        Args:
            emit: takes the highest of each step.
        """
        self._emit = emit
        self._steps: dict[Trace | None, _Step] = {}
        """Steps that are not over: stages of several come by turns, where the device is late."""

    def see(self, stage: Stage) -> dict[str, Value]:
        """Take in a finished stage of a process that uses a device; give what it says of activations."""
        step = self._steps.get(stage.trace)
        if stage.name == vocabulary.FORWARD:
            if (stage.attributes or {}).get(vocabulary.MODE) != "eval":
                if step is None:
                    step = self._steps[stage.trace] = _Step()
                step.is_mixed |= step.waiting > 0
                step.waiting += 1
                step.forward = stage
        elif stage.name == vocabulary.BACKWARD and step is not None and step.waiting:
            step.waiting -= 1
            forward, step.forward = step.forward, None
            peak = None if step.is_mixed or forward is None else _peak(forward, stage)
            step.is_mixed &= step.waiting > 0
            if peak is not None:
                step.highest, step.end_ns = max(step.highest, peak.low), stage.end_ns
                return {vocabulary.ACTIVATION_PEAK: peak.low, vocabulary.ACTIVATION_PEAK_EXACT: peak.is_exact}
        return {}

    def tell(self, current: Trace | None, open_or_late: Iterable[Any]) -> None:
        """Emit the highest of each step that is over.

        Args:
            current: the trace of what comes next.
            open_or_late: stages that have not ended, or wait for their device, and collectives.
        """
        goes_on = {stage.trace for stage in open_or_late if stage.name in PASSES} | {current}
        for trace in [trace for trace in self._steps if trace not in goes_on]:
            step = self._steps.pop(trace)
            if step.highest:
                self._emit(Point(vocabulary.ACTIVATION, step.highest, step.end_ns))


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
    """Bound the peak of live bytes within a stage; its own where peaks are reset for it."""
    attributes = stage.attributes or {}
    own = attributes.get(vocabulary.ALLOCATED_PEAK)
    if isinstance(own, int) and attributes.get(vocabulary.ALLOCATED_PEAK_EXACT) is True:
        return PeakBounds(own, own)
    start, end = stage.before and stage.before[1], stage.after and stage.after[1]
    if start is None or end is None:
        return None
    return stage_peak(start.allocated_peak, end.allocated_peak, start.allocated, end.allocated)
