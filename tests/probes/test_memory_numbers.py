"""Tests of what a finished stage is given: memory."""

from __future__ import annotations

import os

import pytest

from otel_rl import vocabulary as v
from otel_rl.probes.memory import Device, Reading
from otel_rl.probes.memory_numbers import device_points, memory_attributes

PAGE = os.sysconf("SC_PAGE_SIZE")
HOST = {v.RSS_START: 2 * PAGE, v.RSS_END: 4 * PAGE, v.VMS_START: PAGE, v.VMS_END: 3 * PAGE}
END_ALONE = {
    v.ALLOCATED_END: 5,
    v.ALLOCATED_PEAK: 5,
    v.ALLOCATED_PEAK_EXACT: False,
    v.RESERVED_END: 8,
    v.RESERVED_PEAK: 8,
    v.RESERVED_PEAK_EXACT: False,
}
"""What can be said where nothing of this device was read at the begin."""


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (None, None, {}),
        (
            Device(10, 50, 20, 60),
            Device(15, 50, 20, 60),
            {
                v.ALLOCATED_START: 10,
                v.ALLOCATED_END: 15,
                v.ALLOCATED_PEAK: 15,
                v.ALLOCATED_PEAK_EXACT: False,
                v.RESERVED_START: 20,
                v.RESERVED_END: 20,
                v.RESERVED_PEAK: 20,
                v.RESERVED_PEAK_EXACT: False,
            },
        ),
        (
            Device(10, 50, 20, 60),
            Device(5, 70, 30, 90),
            {
                v.ALLOCATED_START: 10,
                v.ALLOCATED_END: 5,
                v.ALLOCATED_PEAK: 70,
                v.ALLOCATED_PEAK_EXACT: True,
                v.RESERVED_START: 20,
                v.RESERVED_END: 30,
                v.RESERVED_PEAK: 90,
                v.RESERVED_PEAK_EXACT: True,
            },
        ),
        (None, Device(5, 7, 8, 9), END_ALONE),
        (Device(1, 2, 3, 4, device=0), Device(5, 7, 8, 9, device=1), END_ALONE),
        (Device(5, 7, 8, 9), None, {}),
    ],
)
def test_a_peak_is_exact_only_where_the_stage_raised_it(
    start: Device | None, end: Device | None, expected: dict[str, object]
) -> None:
    """Otherwise the larger end is a lower bound; one that comes, goes or changes meanwhile is no trouble."""
    assert HOST | expected == memory_attributes((b"1 2 0 0", start), (b"3 4 0 0", end))


@pytest.mark.parametrize("pair", [(None, None), (None, (b"1 1", None)), ((b"1 1", None), None)])
def test_without_two_readings_nothing_is_said(pair: tuple[Reading | None, Reading | None]) -> None:
    """A stage that was recorded afterwards."""
    assert {} == memory_attributes(*pair)


@pytest.mark.parametrize(
    ("device", "usage", "expected"),
    [
        (
            Device(40, 0, 50, 0, active=42, inactive_split=5, requested=30),
            (20, 80),
            {
                v.ALLOCATED: 40,
                v.RESERVED: 50,
                v.ACTIVE: 42,
                v.REQUESTED: 30,
                v.INACTIVE_SPLIT: 5,
                v.NON_TORCH: 10,
                v.FRAGMENTATION: 0.1,
                v.SLACK: 0.2,
                v.ROUNDING: 0.25,
            },
        ),
        (  # cudaMallocAsync counts only these two
            Device(40, 0, 50, 0, active=0, inactive_split=0, requested=0),
            (20, 80),
            {v.ALLOCATED: 40, v.RESERVED: 50, v.NON_TORCH: 10, v.SLACK: 0.2},
        ),
        (Device(40, 0, 50, 0), None, {v.ALLOCATED: 40, v.RESERVED: 50, v.SLACK: 0.2}),
        (  # nothing allocated yet
            Device(0, 0, 0, 0, active=0, inactive_split=0, requested=0),
            (7, 8),
            {v.ALLOCATED: 0, v.RESERVED: 0, v.ACTIVE: 0, v.INACTIVE_SPLIT: 0, v.NON_TORCH: 1},
        ),
    ],
)
def test_a_step_says_what_its_memory_consists_of(
    device: Device, usage: tuple[int, int] | None, expected: dict[str, object]
) -> None:
    """What the allocator does not count is left out, never 0."""
    points = list(device_points(device, usage, 7))
    assert pytest.approx(expected) == {point.name: point.value for point in points}
    assert {7} == {point.time_ns for point in points}
