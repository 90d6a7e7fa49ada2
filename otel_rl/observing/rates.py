"""FLOP/s and MFU of a step, by scope: whose operations, and whose time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from otel_rl import vocabulary as v
from otel_rl.analysis.flops import FORMULA, mfu
from otel_rl.analysis.flops_peaks import peak
from otel_rl.analysis.intervals import Interval, covered
from otel_rl.process.state import Trace, state
from otel_rl.records import Labels, Point
from otel_rl.requests.parents import ForeignParent, Stages
from otel_rl.trace.stage import Stage

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


LABELS: Final[dict[str, Labels]] = {
    scope: ((v.FLOPS_SCOPE, scope), (v.FLOPS_FORMULA, FORMULA)) for scope in (UPDATE, LOGPROB, STEP)
}


class TimedStage(NamedTuple):
    """A stage that has ended."""

    name: str
    parent: ForeignParent
    """The stage that it is in."""
    time: Interval
    device_s: float | None
    """Time of the device, where it is known."""


@dataclass(slots=True)
class StepFlops:
    """Operations of one step, and the stages that did them."""

    counts: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    unknown: set[str] = field(default_factory=set)
    """Scopes of which a part cannot be known."""
    done: list[TimedStage] = field(default_factory=list)

    def count(self, stage: str, operations: int) -> None:
        self.counts[stage] += operations

    def stage(self, stage: Stage, trace: Trace) -> None:
        attributes = stage.attributes or {}
        if attributes.get(v.MODE) == "eval":
            return
        seconds = attributes.get(v.DEVICE_TIME)
        device_s = seconds if isinstance(seconds, float) else None
        self.done.append(
            TimedStage(stage.name, ForeignParent(trace, stage.parent_id), (stage.began, stage.ended), device_s)
        )

    def leave_evaluations(self, stages: Stages) -> None:
        """Forget the stages that lie in an evaluation."""
        purposes = stages.purposes({one.parent for one in self.done})
        self.done = [one for one in self.done if not purposes[one.parent].mode]

    def seconds(self, scope: str) -> tuple[float, bool]:
        """Return the time of a scope: of its stages together, by the device where that timed every one of them.

        The time of a stage inside another one of the scope is a part of that one's.

        Returns:
            The time, and whether it is the device's.
        """
        done = [one for one in self.done if SCOPES[one.name] == scope]
        if any([one.device_s is not None for one in done]):
            outer = _outermost(done)
            seconds = [one.device_s for one in outer if one.device_s is not None]
            if len(seconds) == len(outer):
                return sum(seconds), True
        return covered([one.time for one in done]) / 1e9, False


def _outermost(done: list[TimedStage]) -> list[TimedStage]:
    """Leave out what began and ended while another of them was open."""
    outer: list[TimedStage] = []
    for one in sorted(done, key=lambda one: (one.time[0], -one.time[1])):
        if not outer or one.time[1] > outer[-1].time[1]:
            outer.append(one)
    return outer


def points(work: StepFlops, container: Stage, device: str) -> Iterator[Point]:
    """Return the FLOP/s of each scope that has operations, and MFU where a peak is known."""
    best = peak(device, state.config.peak_flops or None) if device or state.config.peak_flops else None
    counts: defaultdict[str, int] = defaultdict(int)
    for stage, number in work.counts.items():
        counts[SCOPES[stage]] += number
        counts[STEP] += number
    for scope in (UPDATE, LOGPROB, STEP):
        is_unknown = bool(work.unknown) if scope == STEP else scope in work.unknown
        if is_unknown or not counts[scope]:
            continue
        if scope == STEP:
            seconds, is_sure = (container.ended - container.began) / 1e9, True
        else:
            seconds, is_sure = work.seconds(scope)
        if seconds <= 0:
            continue
        count, labels = counts[scope], LABELS[scope]
        if device and not is_sure:
            labels = (*labels, (v.CLOCK, "host"))
        yield Point(v.FLOPS_RATE, count / seconds, container.end_ns, labels)
        ratio = None if best is None else mfu(count, best.flops, seconds)
        if best is not None and ratio is not None:
            named: Labels = ((v.FLOPS_PEAK, best.flops), (v.FLOPS_PEAK_SOURCE, best.source))
            yield Point(v.MFU, ratio, container.end_ns, (*labels, *named))
