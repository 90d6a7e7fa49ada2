"""Which ranks are slow again and again, and which communication is slow, over many steps of peers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from math import isnan
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from otel_rl import vocabulary as v
from otel_rl.analysis.stragglers import (
    COMM_SHARE,
    EXCESS_SHARE,
    LEAST_TIMES,
    PERSISTENT_SHARE,
    STRAGGLER_RATIO,
    TIE_SHARE,
    WRITER_RATIO,
    WRITTEN,
    SlowComm,
    Straggler,
    compared_with,
    is_at_times,
)
from otel_rl.tables.forest import NONE, combinations, in_order, sums
from otel_rl.tables.peers import OwnTimes, PeerWork

if TYPE_CHECKING:
    from otel_rl.tables.forest import Flags, Ints, Seconds


class StageOwn(NamedTuple):
    """Own times in a stage."""

    step: Ints
    """The steps that have it, in order."""
    ranks: list[int]
    own_s: Seconds
    """A row for each rank, a column for each step; NaN if the rank has no time there."""

    def by_rank(self) -> dict[int, list[float]]:
        """Return the time of each rank in each step."""
        return dict(zip(self.ranks, self.own_s.tolist(), strict=True))


class ManySteps:
    """The steps of a run, compared; it keeps 8 bytes for each stage of each rank and step."""

    def __init__(self, work: PeerWork, own: OwnTimes, parts: Ints, steps_ns: Ints) -> None:
        """Take parts as steps of ranks that do the same work.

        Args:
            work: the calls of these and other parts.
            own: own times in them; what is of the stage after those of ``work`` is under no stage.
            parts: their numbers, in order.
            steps_ns: the time of each.
        """
        step_of = np.full(len(work.first), NONE)
        step_of[parts] = np.arange(len(parts))
        stages = [*work.stages, v.OTHER]

        def of_parts(cells: Sequence[Ints]) -> tuple[Ints, ...]:
            kept = step_of[cells[0]] != NONE
            return step_of[cells[0][kept]], *(column[kept] for column in cells[1:])

        self._steps_ns = steps_ns
        self._own = _by_stage(stages, *of_parts(own))
        _, stage, count = of_parts(work.counts)
        self._counts = dict(zip(stages, sums(stage, count, len(stages)).tolist(), strict=True))
        """Collectives of all steps by stage, of each step on the rank that has most."""
        self._inseparable = {stages[code] for code in of_parts(work.inseparable)[1].tolist()}
        """Stages whose collectives cannot be separated on some rank in some step."""
        step, stage, transfer_ns = of_parts(work.transfers)
        self._transfers = {
            stages[code]: (step[stage == code], transfer_ns[stage == code]) for code in dict.fromkeys(stage.tolist())
        }
        """By stage: steps, and the least time that any rank was in collectives there without waiting."""

    @cached_property
    def comparable(self) -> dict[str, dict[int, list[float]]]:
        """Return the own times of the stages whose collectives can be separated in every step, by stage and rank, s."""
        left_out = {*self._inseparable, v.OTHER}
        return {stage: own.by_rank() for stage, own in self._own.items() if stage not in left_out}

    @cached_property
    def mean_own_s(self) -> dict[str, dict[int, float]]:
        """Own times in the mean step, of the same stages and of what is under no stage, s."""
        steps = len(self._steps_ns) or 1
        return {
            stage: {
                rank: sum(time_s for time_s in times if not isnan(time_s)) / steps
                for rank, times in own.by_rank().items()
            }
            for stage, own in self._own.items()
            if stage not in self._inseparable
        }

    def stragglers(self) -> list[Straggler[int]]:
        """Return the ranks that are slow in a stage again and again, the costliest first.

        Such a rank is slow in at least half of the steps that have the stage, or in at least three that are half of the
        cases in which any rank is slow there: two slow ranks in one step are two. It costs at least 2 % of the median
        step (of the mean step if not every step has the cost). A stage that is inseparable in any step does not count.
        """
        steps_ns = self._steps_ns.tolist() or [0]
        limit_s = EXCESS_SHARE * median(steps_ns) / 1e9
        mean_limit_s = EXCESS_SHARE * sum(steps_ns) / len(steps_ns) / 1e9
        slow = self._slow()
        of_stage: Counter[str] = Counter()
        for (_, stage), count in slow.items():
            of_stage[stage] += count
        named = [
            self._straggler(rank, stage, count)
            for (rank, stage), count in slow.items()
            if stage not in self._inseparable
            and (
                not is_at_times(count, len(self._own[stage].step))
                or count >= max(LEAST_TIMES, PERSISTENT_SHARE * of_stage[stage])
            )
        ]
        costly = [one for one in named if one.cost_s >= (mean_limit_s if one.is_mean else limit_s)]
        # If all ranks that have the stage are as slow, none is a straggler.
        return sorted((one for one in costly if one.others_s > 0), key=lambda one: -one.cost_s)

    def slow_communication(self) -> list[SlowComm]:
        """Return the stages whose collectives are a large part of the step on every rank; no rank is to blame.

        A step with unknown waits in the stage counts as a step without it.
        """
        slow: list[SlowComm] = []
        for stage, (step, transfers_ns) in self._transfers.items():
            pairs = [*zip(transfers_ns.tolist(), self._steps_ns[step].tolist(), strict=True)]
            absent = [0.0] * (len(self._steps_ns) - len(pairs))
            share = median([transfer / whole if whole else 0.0 for transfer, whole in pairs] + absent)
            if share >= COMM_SHARE:
                transfer_s = median([transfer / 1e9 for transfer, _ in pairs] + absent)
                slow.append(SlowComm(stage, transfer_s, share, self._counts[stage] / len(self._steps_ns)))
        return sorted(slow, key=lambda one: -one.transfer_s)

    def _slow(self) -> dict[tuple[int, str], int]:
        """Return by rank and stage in how many steps it is slow; in order of the first ones, the costliest first."""
        found: list[tuple[tuple[int, float], int, str, int]] = []
        for stage, own in self._own.items():
            is_slow, excess_s = slow_in_steps(stage, own.own_s, self._steps_ns[own.step])
            for row in np.flatnonzero(is_slow.any(axis=1)).tolist():
                first = int(is_slow[row].argmax())
                place = int(own.step[first]), -float(excess_s[first])
                found.append((place, own.ranks[row], stage, int(is_slow[row].sum())))
        found.sort(key=lambda one: one[0])
        return {(rank, stage): count for _, rank, stage, count in found}

    def _straggler(self, rank: int, stage: str, slow_steps: int) -> Straggler[int]:
        own = self._own[stage]
        row = own.ranks.index(rank)
        pairs: list[tuple[float, float]] = []
        for time_s, others in zip(own.own_s[row].tolist(), np.delete(own.own_s, row, axis=0).T.tolist(), strict=True):
            present = [other_s for other_s in others if not isnan(other_s)]
            if present and not isnan(time_s):
                pairs.append((time_s, compared_with(time_s, present)))
        steps, all_steps = len(own.step), len(self._steps_ns)
        excess_s = [time_s - others_s for time_s, others_s in pairs]
        if is_at_times(slow_steps, steps):
            cost_s = sum(excess_s) / all_steps
            pairs = sorted(pairs, key=lambda pair: pair[0] - pair[1])[-slow_steps:]  # those in which it is slow
        else:
            cost_s = median(excess_s) * steps / all_steps
        own_s = median([time_s for time_s, _ in pairs])
        others_s = median([others_s for _, others_s in pairs if others_s > 0] or [0.0])
        return Straggler(rank, stage, cost_s, slow_steps, steps, own_s, others_s, all_steps)


def slow_in_steps(stage: str, own_s: Seconds, steps_ns: Ints) -> tuple[Flags, Seconds]:
    """Find the ranks that are slow in a stage: in each step the slowest, those as slow, and others that are slow.

    It is ``analysis.stragglers.slow_in`` of many steps at once.

    Args:
        stage: the stage.
        own_s: a row for each rank, a column for each step; NaN if the rank has no time there.
        steps_ns: the duration of the steps.

    Returns:
        Which ranks are slow in which steps, and by how much the slowest is slower than the median of the others, s.
    """
    columns = np.arange(own_s.shape[1])
    order = np.argsort(own_s, axis=0)  # NaN comes last
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(len(own_s))[:, np.newaxis], axis=0)
    ordered = np.take_along_axis(own_s, order, axis=0)
    others = np.sum(~np.isnan(own_s), axis=0) - 1
    middle = [np.maximum(0, (others - 1) // 2), others // 2]
    low, high = (ordered[np.minimum(one + (one >= place), len(own_s) - 1), columns] for one in middle)
    median_s = np.where(others > 0, (low + high) / 2, np.nan)  # of the other ranks
    limit_s = EXCESS_SHARE * steps_ns / 1e9
    is_slow = (STRAGGLER_RATIO * median_s > 0) & (own_s >= STRAGGLER_RATIO * median_s) & (own_s - median_s >= limit_s)
    slowest = order[np.maximum(0, others), columns], columns
    is_named = is_slow[slowest]
    if stage in WRITTEN:  # by one rank for all
        is_named &= own_s[slowest] < WRITER_RATIO * median_s[slowest]
    is_tied = own_s > (1 - TIE_SHARE) * own_s[slowest]
    return is_named & (is_slow | is_tied), own_s[slowest] - median_s[slowest]


def _by_stage(stages: Sequence[str], step: Ints, stage: Ints, rank: Ints, own_ns: Ints) -> dict[str, StageOwn]:
    """Arrange own times by stage: each of a step, the number of a stage, and a rank; stages in order of their steps."""
    order = np.argsort(step, kind="stable")
    first, of = in_order(*combinations(stage[order]))
    found: dict[str, StageOwn] = {}
    for number, code in enumerate(stage[order][first].tolist()):
        rows = order[of == number]
        steps, column = np.unique(step[rows], return_inverse=True)
        firsts, place = in_order(*combinations(rank[rows]))
        own_s = np.full((len(firsts), len(steps)), np.nan)
        own_s[place, column] = own_ns[rows] / 1e9
        found[stages[code]] = StageOwn(steps, rank[rows][firsts].tolist(), own_s)
    return found
