"""FLOP/s and MFU of a step, by scope: whose operations, and whose time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.analysis.flops import FORMULA, mfu
from otel_rl.analysis.intervals import Interval, covered
from otel_rl.analysis.peaks import peak
from otel_rl.records import Labels, Point
from otel_rl.runtime import state
from otel_rl.spans import Stage

UPDATE: Final = "update"
LOGPROB: Final = "logprob"
STEP: Final = "step"
SCOPES: Final = {
    v.TRAIN: UPDATE,
    v.FORWARD: UPDATE,
    v.BACKWARD: UPDATE,
    v.CLIP: UPDATE,
    v.OPTIMIZER: UPDATE,
    v.LOGPROB: LOGPROB,
    v.VALUE: LOGPROB,
}
"""Stages whose time counts, and whose batches do; those of an evaluation do not."""
TRAINING: Final = frozenset({v.TRAIN, v.FORWARD})
"""Stages whose batches go forward and backward."""
FORWARD_ONLY: Final = frozenset({v.LOGPROB, v.VALUE})


@dataclass(slots=True)
class Work:
    """Operations of one step, and the stages that did them."""

    counts: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """By stage."""
    unknown: set[str] = field(default_factory=set)
    """Scopes of which a part cannot be known."""
    times: defaultdict[str, list[Interval]] = field(default_factory=lambda: defaultdict(list))
    """By scope, of the host."""
    device_s: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By stage, of the device; as many as there were stages, where it knows them all."""
    stages: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    def count(self, stage: str, operations: int) -> None:
        """Add operations."""
        self.counts[stage] += operations

    def stage(self, stage: Stage) -> None:
        """Add the time of a stage that has ended."""
        attributes = stage.attributes or {}
        if attributes.get(v.MODE) == "eval":
            return
        self.times[SCOPES[stage.name]].append((stage.began, stage.ended))
        self.stages[stage.name] += 1
        seconds = attributes.get(v.DEVICE_TIME)
        if isinstance(seconds, float):
            self.device_s[stage.name].append(seconds)

    def seconds(self, scope: str) -> tuple[float, bool]:
        """Give the time of a scope: of its stages together, by the device where that timed every one of them.

        Returns:
            The time, and whether it is the device's.
        """
        stages = [stage for stage in self.stages if SCOPES[stage] == scope]
        if stages and all(len(self.device_s[stage]) == self.stages[stage] for stage in stages):
            return sum(sum(self.device_s[stage]) for stage in stages), True
        return covered(self.times[scope]) / 1e9, False


def points(work: Work, container: Stage, device: str) -> Iterator[Point]:
    """Give FLOP/s of each scope that has operations, and MFU where a peak is known.

    Args:
        work: of the step.
        container: this rank's, which has ended.
        device: name of its device; empty for a CPU.
    """
    best = peak(device, state.config.peak_flops or None) if device or state.config.peak_flops else None
    for scope in (UPDATE, LOGPROB, STEP):
        scopes = (UPDATE, LOGPROB) if scope == STEP else (scope,)
        count = sum(number for stage, number in work.counts.items() if SCOPES[stage] in scopes)
        if scope == STEP:
            seconds, is_sure = (container.ended - container.began) / 1e9, True
        else:
            seconds, is_sure = work.seconds(scope)
        if not count or seconds <= 0 or not work.unknown.isdisjoint(scopes):
            continue
        labels: Labels = ((v.FLOPS_SCOPE, scope), (v.FLOPS_FORMULA, FORMULA))
        if device and not is_sure:
            labels = (*labels, (v.CLOCK, "host"))
        yield Point(v.FLOPS_RATE, count / seconds, container.end_ns, labels)
        ratio = None if best is None else mfu(count, best.flops, seconds)
        if best is not None and ratio is not None:
            named: Labels = ((v.FLOPS_PEAK, best.flops), (v.FLOPS_PEAK_SOURCE, best.source))
            yield Point(v.MFU, ratio, container.end_ns, (*labels, *named))
