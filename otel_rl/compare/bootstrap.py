"""How much two stretches of noisy numbers differ, and how sure that is: a block bootstrap over the steps.

The numbers of steps in a row resemble each other, so blocks of them are drawn and not single ones. Levels are means of
what each number contributes to them (``contributions``), so a draw is a mean of blocks whatever the level is. How far
such means scatter follows from the blocks: no draw has to be made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[np.float64]

FEWEST: Final = 8
"""Values on either side without which no interval is given."""
TRIMMED: Final = 8
"""The highest and the lowest eighth are left out of a trimmed mean."""
TAIL: Final = 0.1


@dataclass(frozen=True, slots=True)
class Difference:
    """The levels of two stretches, and between which limits their difference lies; None for too few values."""

    before: float
    after: float
    low: float | None = None
    high: float | None = None

    @property
    def by(self) -> float:
        return self.after - self.before

    @property
    def is_sure(self) -> bool:
        """Return whether both limits are on the same side of zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def trimmed(values: Array) -> Array:
    """Return what each value contributes to the mean without the highest and the lowest eighth.

    The mean of the result is that level; its variance is the level's, times the number of values.
    """
    ordered = np.sort(values)
    cut = len(values) // TRIMMED
    low, high = ordered[cut], ordered[len(values) - cut - 1]
    drawn_in = np.clip(values, low, high)
    level = ordered[cut : len(values) - cut].mean()
    return level + (drawn_in - drawn_in.mean()) / (1 - 2 * cut / len(values))


def plain(values: Array) -> Array:
    """Return what each value contributes to the mean: itself."""
    return values


def tail(values: Array) -> Array:
    """Return what each value contributes to the mean of the highest tenth."""
    edge = np.quantile(values, 1 - TAIL)
    return edge + np.maximum(values - edge, 0.0) / TAIL


def weighted(values: Array, weights: Array) -> Array:
    """Return what each value contributes to the weighted mean; to that of rates, if the weights are their times."""
    level = float(values @ weights / weights.sum())
    return level + weights * (values - level) / weights.mean()


def difference(before: Array, after: Array, chance: float, *, is_paired: bool) -> Difference:
    """Compare the levels of two stretches.

    Args:
        before: what each value contributes to the level, as ``trimmed`` returns it, in the order of steps.
        after: likewise.
        chance: how likely the difference may lie outside of the limits.
        is_paired: the k-th values of both belong together. What moves both alike is then no noise.
    """
    if not len(before) or not len(after):
        return Difference(math.nan, math.nan)
    levels = float(before.mean()), float(after.mean())
    if min(len(before), len(after)) < FEWEST:
        return Difference(*levels)
    parts = [_scatter(after - before)] if is_paired else [_scatter(before), _scatter(after)]
    error = math.hypot(*(scatter for scatter, _ in parts))
    if not math.isfinite(error):  # of numbers near the largest
        return Difference(*levels)
    if not error:
        return Difference(*levels, levels[1] - levels[0], levels[1] - levels[0])
    # Welch and Satterthwaite: the degrees of freedom of a sum
    freedom = error**4 / sum(scatter**4 / free for scatter, free in parts if scatter)
    wide = student(chance, max(1, int(freedom))) * error
    return Difference(*levels, levels[1] - levels[0] - wide, levels[1] - levels[0] + wide)


def _scatter(values: Array) -> tuple[float, float]:
    """Return the standard error of a mean by drawn blocks, and its degrees of freedom.

    Blocks that begin anywhere tell half as much again as those that lie side by side (Priestley 1981, Bartlett's
    window).
    """
    count = len(values)
    length = block_length(values)
    blocks = max(2, round(count / length))
    sums = np.concatenate([[0.0], np.cumsum(np.concatenate([values, values[:length]]) - values.mean())])
    means = (sums[length:] - sums[:-length])[:count] / length
    error = float(means.std()) / math.sqrt(blocks)
    if error <= abs(float(values.mean())) * 1e-12:  # rounding
        return 0.0, 1.0
    # a mean of blocks is that of all values less often than one of independent ones: too small by this factor
    return error * math.sqrt(count / max(1, count - length)), max(1.0, 1.5 * count / length - 1)


def block_length(values: Array) -> int:
    """Return how many values a block has, at most a third of all: twice the time in which values resemble each other.

    That time is summed up over pairs of lags as long as these are clearly positive (after Geyer 1992), so that what
    comes and goes, such as an evaluation in every fifth step, makes no long blocks. Of few values the first lag tells
    more.
    """
    count = len(values)
    covariance = _covariances(values, min(count - 1, max(FEWEST, 3 * math.isqrt(count))))
    if not 0 < covariance[0] < math.inf:
        return 1
    alike = covariance / covariance[0]
    pairs = alike[: len(alike) // 2 * 2].reshape(-1, 2).sum(axis=1)
    is_small = pairs <= math.sqrt(2 / count) / 2  # half the standard error of a pair of noise
    kept = pairs[: int(np.argmax(is_small)) if is_small.any() else len(pairs)]
    nearest = min(alike[1] + (1 + 3 * alike[1]) / count, 1 - 1 / count)  # as found it is too small (Kendall 1954)
    time = max(2 * kept.sum() - 1, (1 + nearest) / (1 - nearest))
    return int(min(max(1, math.ceil(2 * time - 1)), max(1, math.ceil(count / 3))))


def _covariances(values: Array, most: int) -> Array:
    centred = values - values.mean()
    found: Array = np.array([centred[: len(centred) - lag] @ centred[lag:] for lag in range(most + 1)])
    return found / len(values)


def student(chance: float, freedom: int) -> float:
    """Return what a t value exceeds on either side by this chance (Hill, algorithm 396 of the ACM)."""
    if freedom == 1:
        return 1 / math.tan(chance * math.pi / 2)
    if freedom == 2:
        return math.sqrt(2 / (chance * (2 - chance)) - 2)
    a = 1 / (freedom - 0.5)
    b = 48 / a**2
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * freedom
    y = (d * chance) ** (2 / freedom)
    if y > 0.05 + a:
        x = NormalDist().inv_cdf(chance / 2)
        y = x * x
        c += 0.3 * (freedom - 4.5) * (x + 0.6) if freedom < 5 else 0
        c += (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b
        y = math.expm1(a * ((((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x) ** 2)
    else:
        below = ((freedom + 6) / (freedom * y) - 0.089 * d - 0.822) * (freedom + 2) * 3
        y = ((1 / below + 0.5 / (freedom + 4)) * y - 1) * (freedom + 1) / (freedom + 2) + 1 / y
    return math.sqrt(freedom * y)
