"""How slow a rank is, as a score (NVRx), and what its slowness costs the whole job, as a ratio (what-if).

Sources: the section scores of nvidia-resiliency-ext's straggler detection; the slowdowns S and S_w of ByteDance's
what-if analysis (arXiv 2505.05713), here for ranks that share collectives and have no pipeline between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import fsum, isnan
from statistics import fmean, median
from typing import Final, Generic

from otel_rl.analysis.stage_calls import Key, RankT, StageCall, keyed

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


@dataclass(frozen=True, slots=True)
class WhatIf(Generic[RankT]):
    """One step if every rank were like the mean of the ranks."""

    actual_s: float
    ideal_s: float
    alone_s: dict[RankT, float]
    """Its time with this rank as it is and the others ideal."""


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
    common = set.intersection(*(set(one) for one in sections.values())) if sections else set()
    if not common:
        return {}
    scores = {name: relative_scores({rank: one[name].median_s for rank, one in sections.items()}) for name in common}
    found: dict[RankT, float] = {}
    for rank, one in sections.items():
        weight = sum(one[name].total_s for name in common)
        total = sum(scores[name][rank] * one[name].total_s for name in common)
        found[rank] = total / weight if weight else 1.0
    return found


def what_if(calls: Iterable[StageCall[RankT]]) -> WhatIf[RankT] | None:
    """Compare a step with an ideal one, in which each rank takes the mean of the ranks.

    A call with time in collectives ends a stretch: there the ranks wait for the slowest. That is exact if a stage's
    collectives come at its end. Transfers are the same in both.

    Returns:
        None if a stage's collectives cannot be separated, if ranks lack each other's calls, or if no time passed.
    """
    step = list(calls)
    ranks = {call.rank for call in step}
    actual = ideal = 0.0
    alone = dict.fromkeys(ranks, 0.0)
    for own, transfer in _stretches(keyed(step), ranks):
        mean = fmean(own.values())
        actual += transfer + max(own.values())
        ideal += transfer + mean
        for rank, value in own.items():
            alone[rank] += transfer + max(value, mean)
    return WhatIf(actual / 1e9, ideal / 1e9, {rank: time / 1e9 for rank, time in alone.items()}) if ideal else None


def _stretches(
    matched: Mapping[Key, Mapping[RankT, StageCall[RankT]]], ranks: set[RankT]
) -> list[tuple[dict[RankT, int], int]]:
    """Return own time by rank and the transfer after it, ns, of each stretch between collectives; none if unknown."""
    found: list[tuple[dict[RankT, int], int]] = []
    own: dict[RankT, int] = dict.fromkeys(ranks, 0)
    for calls in matched.values():
        if set(calls) != ranks or any(call.own_ns is None for call in calls.values()):
            return []
        for rank, call in calls.items():
            own[rank] += call.own_ns or 0
        if any(call.inside_ns for call in calls.values()):
            found.append((own, min(call.inside_ns for call in calls.values())))
            own = dict.fromkeys(ranks, 0)
    return [*found, (own, 0)] if ranks else []
