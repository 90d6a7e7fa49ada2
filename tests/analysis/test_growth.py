"""Numbers that grow with the steps, and numbers that only rise for a while."""

from __future__ import annotations

import random
from itertools import accumulate

import pytest

from otel_rl.analysis.series.growth import FEWEST, LEAST, growth

MIB = 1 << 20


def sizes(*parts: tuple[int, float], first: float = 900.0, noise: float = 1.0, seed: int = 0) -> list[float]:
    """Return values in MiB that rise by so much in each of so many steps, with noise."""
    chance = random.Random(seed)
    rises = [rise for steps, rise in parts for _ in range(steps)]
    return [first + level + chance.gauss(0, noise) for level in accumulate(rises)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("noise", [0.0, 5.0, 30.0])
def test_a_leak_is_found_with_its_slope(noise: float, seed: int) -> None:
    """Whatever the noise of a garbage collector."""
    found = growth(sizes((55, 20.0), noise=noise, seed=seed), (0.05, 64))
    assert found is not None
    assert (0, pytest.approx(20, abs=0.1 + noise / 10)) == (found.begin, found.per_step)


def test_a_leak_that_begins_late_is_found() -> None:
    """In the last half, or quarter, of the steps."""
    for flat in (100, 150):
        found = growth(sizes((flat, 0.0), (200 - flat, 20.0)), (0.05, 64))
        assert found is not None
        assert (flat, pytest.approx(20, abs=1)) == (found.begin, found.per_step)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "parts",
    [
        [(100, 0.0)],
        [(30, 5.0), (70, 0.0)],
        [(50, 0.0), (1, 800.0), (49, 0.0)],
        [(110, 0.35)],
        [(20, 3.0), (220, 0.15)],
        [(40, 5.0), (40, -5.0), (40, 5.0)],
    ],
)
def test_what_settles_does_not_grow(parts: list[tuple[int, float]], seed: int) -> None:
    """Nor what jumps once, creeps or swings."""
    assert growth(sizes(*parts, seed=seed), (0.05, 64)) is None


def test_a_growth_that_comes_in_jumps_counts() -> None:
    """As of something that leaks in each evaluation."""
    found = growth(sizes(*[(19, 0.0), (1, 100.0)] * 8), (0.05, 64))
    assert found is not None
    assert pytest.approx(5, rel=0.2) == found.per_step


def test_few_values_say_nothing() -> None:
    """A run must have made some steps."""
    assert growth(sizes((LEAST - 1, 20.0)), (0.05, 64)) is None
    assert growth(sizes((LEAST, 20.0)), (0.05, 64)) is not None
    assert growth([], (0.05, 64)) is None
    assert growth(sizes((FEWEST, 200.0)), (0.05, 64)) is not None
    assert growth(sizes((FEWEST - 1, 200.0)), (0.05, 64)) is None
