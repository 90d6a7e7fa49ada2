"""Tests of what a finished stage is given: memory."""

from __future__ import annotations

import os

import pytest

from otel_rl import vocabulary as v
from otel_rl.complete import memory_attributes
from otel_rl.probes.memory import Device, Reading

PAGE = os.sysconf("SC_PAGE_SIZE")
HOST = {v.RSS_START: 2 * PAGE, v.RSS_END: 4 * PAGE, v.VMS_START: PAGE, v.VMS_END: 3 * PAGE}


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
        (
            None,
            Device(5, 7, 8, 9),
            {
                v.ALLOCATED_START: 0,
                v.ALLOCATED_END: 5,
                v.ALLOCATED_PEAK: 7,
                v.ALLOCATED_PEAK_EXACT: True,
                v.RESERVED_START: 0,
                v.RESERVED_END: 8,
                v.RESERVED_PEAK: 9,
                v.RESERVED_PEAK_EXACT: True,
            },
        ),
        (Device(5, 7, 8, 9), None, {}),
    ],
)
def test_a_peak_is_exact_only_where_the_stage_raised_it(
    start: Device | None, end: Device | None, expected: dict[str, object]
) -> None:
    """Otherwise the larger end is a lower bound; a device that comes or goes meanwhile is no trouble."""
    assert HOST | expected == memory_attributes((b"1 2 0 0", start), (b"3 4 0 0", end))


@pytest.mark.parametrize("pair", [(None, None), (None, (b"1 1", None)), ((b"1 1", None), None)])
def test_without_two_readings_nothing_is_said(pair: tuple[Reading | None, Reading | None]) -> None:
    """A stage that was recorded afterwards."""
    assert {} == memory_attributes(*pair)
