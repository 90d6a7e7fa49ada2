"""How sure a difference of noisy numbers is."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from otel_rl.compare.bootstrap import block_length, difference, student, tail, trimmed

CHANCE = 0.01 / 40


def noise(rng: np.random.Generator, count: int, memory: float) -> np.ndarray:
    """Make numbers that resemble the one before."""
    found = np.zeros(count + 50)
    for place, one in enumerate(rng.normal(size=count + 50)):
        found[place] = memory * found[place - 1] + one
    return found[50:]


@pytest.mark.parametrize(
    ("chance", "freedom", "expected"),
    [(0.05, 1, 12.706), (0.05, 2, 4.303), (0.05, 4, 2.776), (0.05, 10, 2.228), (0.001, 3, 12.924), (0.0002, 30, 4.234)],
)
def test_t_values(chance: float, freedom: int, expected: float) -> None:
    """As printed tables have them."""
    assert math.isclose(expected, student(chance, freedom), rel_tol=5e-4)


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("is_paired", [True, False])
def test_noise_is_no_difference(memory: float, is_paired: bool) -> None:
    """Of 100 pairs with nothing but noise at most one is taken for different, however slowly it wanders."""
    rng = np.random.default_rng(1)
    pairs = [(100 + noise(rng, 58, memory), 100 + noise(rng, 58, memory)) for _ in range(100)]
    assert 1 >= sum(difference(*map(trimmed, pair), CHANCE, is_paired=is_paired).is_sure for pair in pairs)


def test_a_difference_is_found() -> None:
    """Of a tenth below noise of a tenth, in each of 50 pairs; the limits hold it."""
    rng = np.random.default_rng(2)
    for _ in range(50):
        found = difference(100 + 10 * rng.normal(size=200), 110 + 10 * rng.normal(size=200), CHANCE, is_paired=False)
        assert found.is_sure
        assert found.low < 10 < found.high


def test_pairs_share_what_moves_both() -> None:
    """A trend and evaluations that both runs have are no noise: a small difference is found below them."""
    rng = np.random.default_rng(3)
    course = 100 + np.arange(60) + 30 * (np.arange(60) % 5 == 4)
    before, after = course + rng.normal(size=60), 1.05 * (course + rng.normal(size=60))
    assert difference(trimmed(before), trimmed(after), CHANCE, is_paired=True).is_sure
    assert not difference(trimmed(before), trimmed(after), CHANCE, is_paired=False).is_sure


def test_blocks_are_as_long_as_the_memory_of_the_numbers() -> None:
    """Single values of noise, long blocks of what wanders, at most a third; and short ones of what comes and goes."""
    rng = np.random.default_rng(4)
    lengths = [block_length(noise(rng, 300, memory)) for memory in (0.0, 0.5, 0.9)]
    assert sorted(lengths) == lengths
    assert lengths[0] <= 3
    assert 15 <= lengths[2] <= 100
    assert 1 == block_length((np.arange(60) % 5 == 4) * 1.0)
    assert 1 == block_length(np.ones(60))


@pytest.mark.parametrize(
    ("level", "of"), [(trimmed, lambda one: np.sort(one)[12:-12].mean()), (tail, lambda one: np.sort(one)[-10:].mean())]
)
def test_levels(level: Callable, of: Callable) -> None:
    """Contributions have the level as their mean, and one wild value hardly moves a trimmed mean."""
    values = np.random.default_rng(5).normal(10, 1, 100)
    assert math.isclose(of(values), level(values).mean(), rel_tol=0.01)
    values[7] = 1e9
    assert (level is tail) == (level(values).mean() > 20)


def test_few_and_equal_values() -> None:
    """No limits for seven values; those of equal numbers are the difference itself."""
    few = difference(np.ones(7), np.full(7, 2.0), CHANCE, is_paired=True)
    assert (1.0, 2.0, None, None, False) == (few.before, few.after, few.low, few.high, few.is_sure)
    same = difference(np.ones(8), np.ones(8), CHANCE, is_paired=True)
    assert (0.0, 0.0, False) == (same.low, same.high, same.is_sure)
    assert math.isnan(difference(np.ones(0), np.ones(8), CHANCE, is_paired=False).by)
