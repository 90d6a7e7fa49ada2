"""Tests of what the activations of micro-batches take."""

from __future__ import annotations

from typing import Any

import pytest

from otel_rl import vocabulary as v
from otel_rl.flusher.completers import ActivationCompleter
from otel_rl.probes.memory import Device
from otel_rl.process.state import Trace
from otel_rl.records import Point
from otel_rl.trace.stage import Stage

TRACE = Trace(1, 0)
F, B = v.FORWARD, v.BACKWARD


def stage(name: str, ends: tuple[int, int], peaks: tuple[int, int], **attributes: Any) -> Stage:
    """Make a stage with live bytes, and the process's peak, at both ends."""
    made = Stage(name, attributes or None)
    made.trace, made.ended = TRACE, 5
    made.before, made.after = ((b"", Device(live, peak, 0, 0)) for live, peak in zip(ends, peaks, strict=True))
    return made


def seen(*stages: Stage) -> list[tuple[Any, Any]]:
    """What the stages say of activations: bytes, and whether they are exact."""
    activations = ActivationCompleter(lambda point: None)
    found = [activations.complete(one, []) for one in stages]
    return [(one.get(v.ACTIVATION_PEAK), one.get(v.ACTIVATION_PEAK_EXACT)) for one in found]


NOTHING = (None, None)


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        # The backward raises the peak of the process: 90 - 10.
        ([(F, (10, 50), (50, 60)), (B, (50, 20), (60, 90))], (80, True)),
        # The forward does, and the backward stays below it.
        ([(F, (10, 50), (50, 90)), (B, (50, 20), (90, 90))], (80, True)),
        # Neither: at least what was live between them, at most the peak so far.
        ([(F, (10, 50), (90, 90)), (B, (50, 20), (90, 90))], (40, False)),
    ],
)
def test_the_peak_within_forward_and_backward(stages: list[Any], expected: tuple[int, bool]) -> None:
    """Less what was live before; exact where one of them raised the peak of the process."""
    assert [NOTHING, expected] == seen(*(stage(*one) for one in stages))


def test_two_devices_have_no_peak_in_common() -> None:
    """The model of the backward is on another one."""
    pair = stage(F, (10, 50), (50, 60)), stage(B, (50, 20), (60, 90))
    pair[1].before, pair[1].after = ((b"", Device(live, 90, 0, 0, device=1)) for live in (50, 20))
    assert [NOTHING, NOTHING] == seen(*pair)


def test_several_on_their_way_are_no_micro_batch() -> None:
    """A pipeline: nothing is said until all of them have their backward."""
    one, other = (F, (10, 50), (90, 90)), (B, (50, 20), (90, 90))
    expected = [NOTHING] * 7 + [(40, False)]
    assert expected == seen(*(stage(*each) for each in (one, one, other, one, other, other, one, other)))


def test_a_forward_of_an_evaluation_has_no_backward() -> None:
    """Nor has one of another step, or a backward without a forward."""
    evaluation = stage(F, (0, 1), (9, 9), **{v.MODE: "eval"})
    pair = stage(F, (10, 50), (90, 90)), stage(B, (50, 20), (90, 90))
    before = stage(F, (10, 50), (90, 90))
    before.trace = Trace(2, 0)
    assert [NOTHING] * 4 + [(40, False)] == seen(stage(B, (1, 1), (9, 9)), before, evaluation, *pair)


def test_a_step_has_its_highest() -> None:
    """One point, with the end of its last backward, once the step is over; none without a backward."""
    points: list[Point] = []
    activations = ActivationCompleter(points.append)
    for live in (10, 5, 20):
        activations.complete(stage(F, (live, 50), (90, 90)), [])
        activations.complete(stage(B, (50, live), (90, 90)), [])
    activations.fold(TRACE, ())
    activations.fold(None, [stage(B, (0, 0), (0, 0))])
    before = list(points)
    alone = stage(F, (10, 50), (90, 90))
    alone.trace = Trace(2, 0)
    activations.complete(alone, [])
    activations.fold(alone.trace, [stage(v.CHECKPOINT, (0, 0), (0, 0))])
    activations.fold(None, ())
    assert ([], [Point(v.ACTIVATION, 45, 5)]) == (before, points)


def test_steps_may_come_by_turns() -> None:
    """Where the device is late, stages of the next step that are not timed come before the last backward of this."""
    points: list[Point] = []
    activations, following, found = ActivationCompleter(points.append), Trace(2, 0), []
    for name, ends, trace in (
        (F, (10, 50), TRACE), (v.IDLE, (0, 0), following), (F, (5, 50), following), (B, (50, 10), TRACE),
        (B, (50, 5), following),
    ):  # fmt: skip
        one = stage(name, ends, (90, 90))
        one.trace = trace
        found.append(activations.complete(one, []).get(v.ACTIVATION_PEAK))
    activations.fold(None, ())
    assert [None, None, None, 40, 45] == found
    assert [40, 45] == [point.value for point in points]


def test_without_readings_nothing_is_said() -> None:
    """The device came into use meanwhile."""
    pair = stage(F, (10, 50), (90, 90)), stage(B, (50, 20), (90, 90))
    pair[0].before = (b"", None)
    assert [NOTHING, NOTHING] == seen(*pair)
