"""Where a number moved to another level at once and stayed there."""

from __future__ import annotations

from random import Random

import pytest

from otel_rl.analysis.series.level_shift import LevelShift, level_shift


def noisy(*levels: float, steps: int = 30, noise: float = 0.1, seed: int = 1) -> list[float]:
    """Make numbers around these levels, one after the other."""
    random = Random(seed)
    return [level * random.lognormvariate(0, noise) for level in levels for _ in range(steps)]


@pytest.mark.parametrize("seed", range(20))
def test_a_move_is_found_where_it_is(seed: int) -> None:
    """To within a step or two, with its levels."""
    found = level_shift(noisy(41, 82, seed=seed))
    assert found is not None
    assert abs(found.index - 30) <= 2
    assert (found.before, found.after) == (pytest.approx(41, rel=0.1), pytest.approx(82, rel=0.1))


@pytest.mark.parametrize("before", [8, 10, 16, 30, 44, 52])
@pytest.mark.parametrize("seed", range(20))
def test_sides_of_unequal_length(before: int, seed: int) -> None:
    """The scatter of the longer side does not move it."""
    random = Random(seed)
    levels = [1.0] * before + [2.0] * (60 - before)
    found = level_shift([level + random.uniform(-0.05, 0.05) for level in levels])
    assert found is not None
    assert found.index == before


@pytest.mark.parametrize("seed", range(20))
def test_a_side_that_is_a_little_too_short(seed: int) -> None:
    """Is found where it is, or not at all."""
    found = level_shift([*noisy(1, steps=7, noise=0.05, seed=seed), *noisy(2, steps=53, noise=0.05, seed=seed)])
    assert found is None or found.index == 7


def test_numbers_without_noise() -> None:
    """Exactly there."""
    assert LevelShift(8, 1.0, 2.0) == level_shift([1.0] * 8 + [2.0] * 8)
    assert LevelShift(12, 2.0, 1.0) == level_shift([2.0] * 12 + [1.0] * 8)


def test_wild_values_do_not_move_it() -> None:
    """Every tenth step an evaluation."""
    values = noisy(41, 82)
    values[::10] = [900.0] * len(values[::10])
    found = level_shift(values)
    assert found is not None
    assert abs(found.index - 30) <= 2


@pytest.mark.parametrize("seed", range(200))
def test_what_only_scatters_did_not_move(seed: int) -> None:
    """However much, and however long."""
    assert level_shift(noisy(50, noise=0.4, steps=16 + seed, seed=seed)) is None


@pytest.mark.parametrize("factor", [1.5, 3, 10])
def test_what_grows_slowly_did_not_move_at_once(factor: float) -> None:
    """Responses that become longer in the course of a training."""
    assert level_shift([1 + (factor - 1) * number / 100 for number in range(100)]) is None


@pytest.mark.parametrize("values", [[], [1.0] * 15, [1.0] * 7 + [2.0] * 8, [1.0] * 4 + [2.0] * 40, [3.0] * 100])
def test_too_few_or_constant_numbers(values: list[float]) -> None:
    """Nothing can be said."""
    assert level_shift(values) is None
