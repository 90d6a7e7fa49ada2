"""How slow a rank is, as a score: the section scores of straggler detection in nvidia-resiliency-ext (NVRx)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import fsum, isnan
from statistics import median
from typing import Final

from otel_rl.analysis.stragglers import RankT

REPORTS: Final = 10
"""A rank's calls are cut into at most this many parts of equally many calls, to compare the last with its best."""
LEAST_CALLS: Final = 5


@dataclass(frozen=True, slots=True)
class SectionTime:
    """Calls of one section on one rank."""

    median_s: float
    total_s: float

    @classmethod
    def of(cls, times_s: Iterable[float]) -> SectionTime | None:
        """Sum up the times of a rank in a section; NaN is no time. None if no time passed."""
        known = [time_s for time_s in times_s if not isnan(time_s)]
        total_s = fsum(known)
        return cls(median(known), total_s) if total_s else None


def score(median_s: float, reference_s: float) -> float:
    """Return reference / median, at most 1: a rank that takes twice as long scores 0.5."""
    return 1.0 if median_s <= reference_s else reference_s / median_s


def relative_scores(median_s: Mapping[RankT, float]) -> dict[RankT, float]:
    """Score the ranks of one section against the fastest of them."""
    reference = min(median_s.values(), default=0.0)
    return {rank: score(value, reference) for rank, value in median_s.items()}


def own_score(sections: Mapping[str, Sequence[float]]) -> float | None:
    """Score the last tenth of a rank's calls against its own best tenth, over all sections, weighted by time.

    Args:
        sections: times of the calls in order, s, by section; NaN is no call.

    Returns:
        None if no section has two parts of five calls.
    """
    score_s = weight_s = 0.0
    for times_s in sections.values():
        parts = _parts([time_s for time_s in times_s if not isnan(time_s)])
        if len(parts) > 1:
            weight = fsum(parts[-1])
            medians = [median(part) for part in parts]
            score_s += weight * score(medians[-1], min(medians))
            weight_s += weight
    return score_s / weight_s if weight_s else None


def _parts(times_s: Sequence[float]) -> list[Sequence[float]]:
    count = min(REPORTS, len(times_s) // LEAST_CALLS)
    ends = [len(times_s) * number // count for number in range(count + 1)] if count else []
    return [times_s[begin:end] for begin, end in pairwise(ends)]


def weighted_scores(sections: Mapping[RankT, Mapping[str, SectionTime]]) -> dict[RankT, float]:
    """Score the ranks over all sections that every rank has: the mean of the relative scores, weighted by time.

    A rank whose sections took no time scores 1. Without a common section the result is empty.
    """
    common = [name for name in next(iter(sections.values()), {}) if all(name in one for one in sections.values())]
    if not common:
        return {}
    scores = {name: relative_scores({rank: one[name].median_s for rank, one in sections.items()}) for name in common}
    found: dict[RankT, float] = {}
    for rank, one in sections.items():
        weight = sum(one[name].total_s for name in common)
        total = sum(scores[name][rank] * one[name].total_s for name in common)
        found[rank] = total / weight if weight else 1.0
    return found
