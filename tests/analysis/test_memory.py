"""Ratios of a device's memory by hand, and peaks of stages against every value that a stage went through."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from otel_rl.analysis.memory import (
    Composition,
    DeviceBytes,
    MemoryPeak,
    activation_peak,
    cache_peak,
    communication_buffers,
    composition,
    stage_peak,
)

GIB = 1 << 30


def test_a_reading_by_hand() -> None:
    """An 80 GiB device, 60 in use, 50 of them torch's, 40 of these live."""
    reading = DeviceBytes(
        allocated=40 * GIB,
        reserved=50 * GIB,
        inactive_split=5 * GIB,
        requested=39 * GIB,
        free=20 * GIB,
        total=80 * GIB,
    )
    assert Composition(fragmentation=0.1, slack=0.2, rounding=1 - 39 / 40, non_torch=10 * GIB) == composition(reading)


def test_what_was_not_read_is_not_guessed() -> None:
    """Ascend keeps no requested bytes, cudaMallocAsync counts them as 0, and an unused allocator holds nothing."""
    assert Composition(None, 0.5, None, None) == composition(DeviceBytes(allocated=1, reserved=2))
    assert None is composition(DeviceBytes(allocated=1, reserved=2, requested=0)).rounding
    halves = [DeviceBytes(allocated=1, reserved=2, free=3), DeviceBytes(allocated=1, reserved=2, total=3)]
    assert [None, None] == [composition(half).non_torch for half in halves]
    assert Composition(0.0, 0.0, 0.0, None) == composition(
        DeviceBytes(allocated=1, reserved=1, inactive_split=0, requested=1)
    )
    nothing = DeviceBytes(allocated=0, reserved=0, inactive_split=0, requested=0, free=6, total=8)
    assert Composition(None, None, None, 2) == composition(nothing)


sizes = st.integers(0, 1 << 40)


@given(sizes, sizes, sizes, sizes)
def test_ratios_lie_between_0_and_1(requested: int, rounding: int, slack: int, split: int) -> None:
    """Requested <= allocated <= reserved, and what is split lies in the slack."""
    allocated, reserved = requested + rounding, requested + rounding + slack
    reading = DeviceBytes(
        allocated=allocated, reserved=reserved, inactive_split=min(split, slack), requested=requested, free=0, total=0
    )
    found = composition(reading)
    assert all(ratio is None or 0 <= ratio <= 1 for ratio in (found.fragmentation, found.slack, found.rounding))
    assert 0 == found.non_torch
    assert found.fragmentation is None or found.slack is None or found.fragmentation <= found.slack


values = st.lists(st.integers(0, 100), min_size=1)


@given(st.lists(st.integers(0, 100)), values)
def test_the_peak_of_a_stage_lies_in_its_bounds(before: list[int], within: list[int]) -> None:
    """Whatever the process allocated before; the bounds are one number exactly where the stage raised the peak."""
    first = [*before, within[0]]
    found = stage_peak(max(first), max(first + within), within[0], within[-1])
    assert found.low <= max(within) <= found.high
    if max(within) > max(first):
        assert MemoryPeak(max(within), max(within)) == found
        assert found.is_exact


def test_a_peak_that_fell_was_reset() -> None:
    """What was before that nobody knows: the stage may have gone higher than ever."""
    peak = stage_peak(100, 60, 50, 40)
    assert (60, False) == (peak.low, peak.is_exact)
    assert not stage_peak(100, 50, 100, 50).is_exact


def test_bounds_are_as_close_as_the_readings() -> None:
    """The higher end of the stage, and the peak of the process."""
    assert [MemoryPeak(60, 100), MemoryPeak(60, 100)] == [stage_peak(100, 100, 40, 60), stage_peak(100, 100, 60, 40)]
    assert MemoryPeak(101, 101) == stage_peak(100, 101, 40, 60)


def test_activations_are_what_forward_and_backward_add() -> None:
    """Both bounds lose what was live before, and none becomes negative."""
    assert MemoryPeak(20, 30) == activation_peak(MemoryPeak(60, 70), 40)
    assert MemoryPeak(0, 30) == activation_peak(MemoryPeak(30, 70), 40)
    assert MemoryPeak(0, 0) == activation_peak(MemoryPeak(30, 40), 50)
    assert not activation_peak(MemoryPeak(60, 70), 40).is_exact


def test_cache_and_buffers() -> None:
    """Half of a cache of 10 GiB; a communicator that took 1 GiB; a device that cannot say."""
    assert 5 * GIB == cache_peak(10 * GIB, 0.5)
    before = DeviceBytes(allocated=0, reserved=GIB, free=7 * GIB, total=10 * GIB)
    after = DeviceBytes(allocated=0, reserved=2 * GIB, free=5 * GIB, total=10 * GIB)
    assert GIB == communication_buffers(before, after)
    assert 0 == communication_buffers(after, before)
    assert None is communication_buffers(before, DeviceBytes(allocated=0, reserved=0))
