"""Whether numbers moved by more than their noise."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rl.analysis.series.change import over_run, peak

any_floats = st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=60)


@given(any_floats)
def test_no_float_raises(values: list[float]) -> None:
    """Nothing rises and falls at once."""
    moved = over_run(values)
    assert not (moved.is_rise and moved.is_fall)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60), st.integers(-10, 10))
def test_the_unit_does_not_matter(values: list[float], power: int) -> None:
    """Nor does the sign, which turns a rise into a fall."""
    moved = over_run(values)
    scaled, mirrored = over_run([value * 2.0**power for value in values]), over_run([-value for value in values])
    assert (moved.is_rise, moved.is_fall) == (scaled.is_rise, scaled.is_fall)
    assert moved.by == pytest.approx(-mirrored.by)


@pytest.mark.parametrize("length", [15, 60, 240, 2000])
def test_noise_hardly_ever_moves(length: int) -> None:
    """Of a hundred runs that stay where they are at most two seem to move."""
    moved = 0
    for seed in range(100):
        chance = random.Random(seed)
        found = over_run([chance.gauss(0.5, 0.1) for _ in range(length)])
        moved += found.is_rise or found.is_fall
    assert moved <= 2


@pytest.mark.parametrize(("length", "gain"), [(60, 0.35), (240, 0.3), (2000, 0.1)])
def test_a_gain_is_seen(length: int, gain: float) -> None:
    """A longer run shows a smaller one, beyond a noise of 0.1."""
    for seed in range(50):
        chance = random.Random(seed)
        assert over_run([chance.gauss(0.5 + gain * step / length, 0.1) for step in range(length)]).is_rise


def test_a_constant_does_not_move() -> None:
    """Nor does a single value, nor none."""
    for values in ([0.1] * 30, [1.0], []):
        assert not over_run(values).is_rise
        assert not over_run(values).is_fall


def test_a_peak_is_a_level() -> None:
    """A single high value is none; of equal ones the first counts."""
    values = [0.0] * 20 + [1.0] * 20 + [0.0] * 20
    values[50] = 2.0
    where, best = peak(values)
    assert 20 <= where.start < where.stop <= 42
    assert best == 1.0
    assert peak([])[0] == slice(0, 0)
    assert math.isnan(peak([])[1])
