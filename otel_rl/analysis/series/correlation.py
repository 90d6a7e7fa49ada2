"""How far two numbers move together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from otel_rl.analysis.series.robust import ranks
from otel_rl.analysis.summary import buckets

SMOOTH: Final = 20
"""Stretches that values are averaged over first, so that noise does not hide a common trend."""


def together(left: Sequence[float], right: Sequence[float]) -> float:
    """Return the rank correlation of two smoothed series of the same steps, from -1 to 1; 0 if one of them is constant.

    Ranks know no unit: neither a scale nor a single wild value changes the result much.
    """
    pairs = [pair for pair in zip(left, right, strict=False) if all(map(math.isfinite, pair))]
    count = min(SMOOTH, max(1, len(pairs) // 2))
    return _pearson(*(ranks(buckets([pair[side] for pair in pairs], count)) for side in (0, 1)))


def step_by_step(left: Sequence[float], right: Sequence[float]) -> float:
    """Return the rank correlation of the changes from one value to the next, whatever the trends are."""
    pairs = [pair for pair in zip(left, right, strict=False) if all(map(math.isfinite, pair))]
    changes = [(x / 2 - before_x / 2, y / 2 - before_y / 2) for (before_x, before_y), (x, y) in pairwise(pairs)]
    return _pearson(*(ranks([change[side] for change in changes]) for side in (0, 1)))


def monotony(values: Sequence[float]) -> float:
    """Return the rank correlation of smoothed values with time: 1 if they only rise, -1 if they only fall."""
    return together([float(index) for index in range(len(values))], values)


def _pearson(left: Sequence[float], right: Sequence[float]) -> float:
    middle = (len(left) - 1) / 2
    products = math.fsum((x - middle) * (y - middle) for x, y in zip(left, right, strict=True))
    scale = math.sqrt(math.fsum((x - middle) ** 2 for x in left) * math.fsum((y - middle) ** 2 for y in right))
    return max(-1.0, min(1.0, products / scale)) if scale else 0.0
