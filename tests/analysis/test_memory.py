"""Ratios of a device's memory by hand, and peaks of stages against every value that a stage went through."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from otel_rl.analysis.memory import (
    PeakBounds,
    activation_peak,
    fragmentation,
    non_torch,
    rounding,
    slack,
    stage_peak,
)

GIB = 1 << 30


def test_a_reading_by_hand() -> None:
    """An 80 GiB device, 60 in use, 50 of them torch's, 40 of these live."""
    assert 0.1 == fragmentation(5 * GIB, 50 * GIB)
    assert 0.2 == slack(40 * GIB, 50 * GIB)
    assert 1 - 39 / 40 == rounding(39 * GIB, 40 * GIB)
    assert 10 * GIB == non_torch((20 * GIB, 80 * GIB), 50 * GIB)


def test_what_was_not_read_is_not_guessed() -> None:
    """Ascend keeps no requested bytes, cudaMallocAsync counts them as 0, and an unused allocator holds nothing."""
    assert [None, None, None, None] == [fragmentation(None, 2), rounding(None, 1), rounding(0, 1), non_torch(None, 2)]
    assert [0.0, 0.0, 0.0] == [fragmentation(0, 1), slack(1, 1), rounding(1, 1)]
    assert [None, None, None, 2] == [fragmentation(0, 0), slack(0, 0), rounding(0, 0), non_torch((6, 8), 0)]


sizes = st.integers(0, 1 << 40)


@given(sizes, sizes, sizes, sizes)
def test_ratios_lie_between_0_and_1(requested: int, rounded: int, free: int, split: int) -> None:
    """Requested <= allocated <= reserved, and what is split lies in the slack."""
    allocated, reserved = requested + rounded, requested + rounded + free
    found = fragmentation(min(split, free), reserved), slack(allocated, reserved), rounding(requested, allocated)
    assert all(ratio is None or 0 <= ratio <= 1 for ratio in found)
    assert 0 == non_torch((0, 0), reserved)
    assert found[0] is None or found[1] is None or found[0] <= found[1]


values = st.lists(st.integers(0, 100), min_size=1)


@given(st.lists(st.integers(0, 100)), values)
def test_the_peak_of_a_stage_lies_in_its_bounds(before: list[int], within: list[int]) -> None:
    """Whatever the process allocated before; the bounds are one number exactly where the stage raised the peak."""
    first = [*before, within[0]]
    found = stage_peak(max(first), max(first + within), within[0], within[-1])
    assert found.low <= max(within) <= found.high
    if max(within) > max(first):
        assert PeakBounds(max(within), max(within)) == found
        assert found.is_exact


def test_a_peak_that_fell_was_reset() -> None:
    """What was before that nobody knows: the stage may have gone higher than ever."""
    peak = stage_peak(100, 60, 50, 40)
    assert (60, False) == (peak.low, peak.is_exact)
    assert not stage_peak(100, 50, 100, 50).is_exact


def test_bounds_are_as_close_as_the_readings() -> None:
    """The higher end of the stage, and the peak of the process."""
    assert [PeakBounds(60, 100), PeakBounds(60, 100)] == [stage_peak(100, 100, 40, 60), stage_peak(100, 100, 60, 40)]
    assert PeakBounds(101, 101) == stage_peak(100, 101, 40, 60)


def test_activations_are_what_forward_and_backward_add() -> None:
    """Both bounds lose what was live before, and none becomes negative."""
    assert PeakBounds(20, 30) == activation_peak(PeakBounds(60, 70), 40)
    assert PeakBounds(0, 30) == activation_peak(PeakBounds(30, 70), 40)
    assert PeakBounds(0, 0) == activation_peak(PeakBounds(30, 40), 50)
    assert not activation_peak(PeakBounds(60, 70), 40).is_exact
