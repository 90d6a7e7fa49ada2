"""What the activations of a micro-batch take: the peak within its forward and its backward."""

from __future__ import annotations

from collections.abc import Callable

from otel_rl import vocabulary
from otel_rl.analysis.memory import Peak, activation_peak, stage_peak
from otel_rl.records import Point, Value
from otel_rl.runtime import Trace
from otel_rl.spans import Stage


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
        self._trace: Trace | None = None
        self._waiting = 0
        """Forwards without a backward yet."""
        self._forward: Stage | None = None
        """The last of them."""
        self._is_mixed = False
        """More than one were on their way."""
        self._highest = 0
        """Of this step."""
        self._end_ns = 0
        """Of the backward that was seen last, ns since 1970."""

    def see(self, stage: Stage) -> dict[str, Value]:
        """Take in a finished stage with readings of the device at both ends; give what it says of activations.

        The highest of a step is emitted with the first stage of another one: what waits for its device comes late.
        """
        if stage.trace is not self._trace:
            if self._highest:
                self._emit(Point(vocabulary.ACTIVATION, self._highest, self._end_ns))
            self._trace, self._waiting, self._forward, self._is_mixed, self._highest = stage.trace, 0, None, False, 0
        if stage.name == vocabulary.FORWARD:
            if (stage.attributes or {}).get(vocabulary.MODE) != "eval":
                self._is_mixed |= self._waiting > 0
                self._waiting += 1
                self._forward = stage
        elif stage.name == vocabulary.BACKWARD and self._waiting:
            self._waiting -= 1
            forward, self._forward = self._forward, None
            peak = None if self._is_mixed or forward is None else _peak(forward, stage)
            self._is_mixed &= self._waiting > 0
            if peak is not None:
                self._highest, self._end_ns = max(self._highest, peak.low), stage.end_ns
                return {vocabulary.ACTIVATION_PEAK: peak.low, vocabulary.ACTIVATION_PEAK_EXACT: peak.is_exact}
        return {}


def _peak(forward: Stage, backward: Stage) -> Peak | None:
    within = [_within(stage) for stage in (forward, backward)]
    known = [one for one in within if one is not None]
    first = forward.before and forward.before[1]
    if first is None or len(known) < len(within):
        return None
    both = Peak(max(one.low for one in known), max(one.high for one in known))
    return activation_peak(both, first.allocated)


def _within(stage: Stage) -> Peak | None:
    """Bound the peak of live bytes within a stage; its own where peaks are reset for it."""
    attributes = stage.attributes or {}
    own = attributes.get(vocabulary.ALLOCATED_PEAK)
    if isinstance(own, int) and attributes.get(vocabulary.ALLOCATED_PEAK_EXACT) is True:
        return Peak(own, own)
    start, end = stage.before and stage.before[1], stage.after and stage.after[1]
    if start is None or end is None or start.device != end.device:
        return None
    return stage_peak(start.allocated_peak, end.allocated_peak, start.allocated, end.allocated)
