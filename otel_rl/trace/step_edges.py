"""What is done where a step begins, and the points of one that has ended: a process's own, or one that it works for."""

from __future__ import annotations

from otel_rl import vocabulary
from otel_rl.guard import attempt
from otel_rl.probes import deferred
from otel_rl.probes.deferred import deferral
from otel_rl.probes.device_id import learn_device
from otel_rl.probes.memory import Reading
from otel_rl.probes.memory_numbers import device_points, host_points
from otel_rl.process.hooked import hooking
from otel_rl.records import Point

CHECKED_STEPS = 3
"""How many steps of a loop check for functions that another library replaced, and for the device in use: either may
come when training begins."""


def prepare_step(checks_left: int) -> int:
    """Take what has come from a device, and check what may have changed; return how many more steps check that."""
    if deferral.pending:
        attempt("take", "what has come from a device", deferred.resolve)
    if checks_left:
        hooking.hook_replacements()
        learn_device()
    return max(0, checks_left - 1)


def step_points(
    began: int, ended: int, anchor: int, cpu_ns: int, reading: Reading | None, usage: tuple[int, int] | None
) -> list[Point]:
    """Make the points of a step; a CPU time below 0 is not known."""
    time_ns = ended + anchor
    points = [Point(vocabulary.STEP_TIME, (ended - began) / 1e9, time_ns)]
    if cpu_ns >= 0:
        points.append(Point(vocabulary.STEP_CPU_TIME, cpu_ns / 1e9, time_ns))
    if reading is None:
        return points
    points += host_points(reading, time_ns)
    device = reading[1]
    if device is not None:
        points += device_points(device, usage, time_ns)
    return points
