"""Which ranks are slow again and again, and which communication is slow, over many steps."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isnan, nan
from statistics import median
from typing import Final, Generic

from otel_rl import vocabulary as v
from otel_rl.analysis.stragglers import EXCESS_SHARE, RankT, compared_with, slow_ranks_in

PERSISTENT_SHARE: Final = 0.5
"""A rank is a straggler of the run if it is slow in this share of the steps that have the stage."""
LEAST_TIMES: Final = 3
"""A rank that is slow at times only is one from this many steps, and the same share of those with any slow rank."""
COMM_SHARE: Final = 0.3
"""Communication is slow from this share of the step, without the waits for slow ranks."""


@dataclass(frozen=True, slots=True)
class Straggler(Generic[RankT]):
    """A rank that is slow in a stage again and again."""

    rank: RankT
    stage: str
    cost_s: float
    """What a step would save if this rank, and those as slow, were as fast as the others.

    It is own time - median of the others, as the median over the steps that have the stage, times the share of steps
    that have it. For a rank that is slow at times it is the mean over all steps.
    """
    slow_steps: int
    """Number of steps in which it was the slowest or as slow."""
    steps: int
    own_s: float
    """The median of its own time; if it is slow at times, over the steps in which it is."""
    others_s: float
    """The median of the other ranks in the same step, as the median over the steps in which they have the stage."""
    all_steps: int

    @property
    def is_mean(self) -> bool:
        return is_mean(self.slow_steps, self.steps, self.all_steps)


@dataclass(frozen=True, slots=True)
class SlowComm:
    """Communication that takes long on every rank."""

    stage: str
    transfer_s: float
    """The least time of any rank in the collectives without waiting, as the median over the steps."""
    share: float
    count: float
    """Collectives per step on the rank that has most."""


def is_at_times(slow_steps: int, steps: int) -> bool:
    """Return whether a straggler is slow at times only: in fewer than half of the steps."""
    return slow_steps < PERSISTENT_SHARE * steps


def is_mean(slow_steps: int, steps: int, all_steps: int) -> bool:
    """Return whether a cost is a part of the mean step, since not every step has it."""
    return is_at_times(slow_steps, steps) or steps < all_steps


class ManySteps(Generic[RankT]):
    """The steps of a run, added one by one; keeps 8 bytes for each stage of each rank and step."""

    def __init__(self) -> None:
        self.own_s: dict[str, dict[RankT, array[float]]] = {}
        """Own time by stage and rank in each step that has the stage; NaN if the rank had no step."""
        self._steps_ns = array("q")
        self._slow: Counter[tuple[RankT, str]] = Counter()
        self._transfers: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        self._inseparable: set[str] = set()
        self._counts: Counter[str] = Counter()

    def add(
        self,
        own_s: Mapping[str, Mapping[RankT, float]],
        time_ns: int,
        *,
        counts: Mapping[str, int],
        inseparable: Iterable[str],
        transfers_ns: Mapping[str, int],
    ) -> None:
        """Add a step: own times by stage and rank, with ``v.OTHER``, its time, and what ``tables.peers.Part`` has."""
        self._steps_ns.append(time_ns)
        self._counts.update(counts)
        self._inseparable.update(inseparable)
        for stage, times in own_s.items():
            self._keep(stage, times)
        self._slow.update(slow_ranks_in(own_s, time_ns))
        for stage, transfer in transfers_ns.items():
            self._transfers[stage].append((transfer, time_ns))

    def comparable(self) -> dict[str, dict[RankT, array[float]]]:
        """Return the own times of the stages whose collectives can be separated in every step."""
        left_out = {*self._inseparable, v.OTHER}
        return {stage: own for stage, own in self.own_s.items() if stage not in left_out}

    def mean_own_s(self) -> dict[str, dict[RankT, float]]:
        """Return own times in the mean step, of the same stages and of what is under no stage, s."""
        steps = len(self._steps_ns) or 1
        return {
            stage: {rank: sum(time_s for time_s in times if not isnan(time_s)) / steps for rank, times in own.items()}
            for stage, own in self.own_s.items()
            if stage not in self._inseparable
        }

    def stragglers(self) -> list[Straggler[RankT]]:
        """Return the ranks that are slow in a stage again and again, the costliest first.

        Such a rank is slow in at least half of the steps that have the stage, or in at least three that are half of the
        cases in which any rank is slow there: two slow ranks in one step are two. It costs at least 2 % of the median
        step (of the mean step if not every step has the cost). A stage that is inseparable in any step does not count.
        """
        steps_ns = self._steps_ns or array("q", [0])
        limit_s = EXCESS_SHARE * median(steps_ns) / 1e9
        mean_limit_s = EXCESS_SHARE * sum(steps_ns) / len(steps_ns) / 1e9
        of_stage: Counter[str] = Counter()
        for (_, stage), count in self._slow.items():
            of_stage[stage] += count
        named = [
            self._straggler(rank, stage, count)
            for (rank, stage), count in self._slow.items()
            if stage not in self._inseparable
            and (
                not is_at_times(count, self._num_steps(stage))
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
        for stage, pairs in self._transfers.items():
            absent = [0.0] * (len(self._steps_ns) - len(pairs))
            share = median([transfer / whole if whole else 0.0 for transfer, whole in pairs] + absent)
            if share >= COMM_SHARE:
                transfer_s = median([transfer / 1e9 for transfer, _ in pairs] + absent)
                slow.append(SlowComm(stage, transfer_s, share, self._counts[stage] / len(self._steps_ns)))
        return sorted(slow, key=lambda one: -one.transfer_s)

    def _num_steps(self, stage: str) -> int:
        return max(len(times) for times in self.own_s[stage].values())

    def _keep(self, stage: str, own: Mapping[RankT, float]) -> None:
        kept = self.own_s.setdefault(stage, {})
        known = self._num_steps(stage) if kept else 0
        for rank, time_s in own.items():
            times = kept.setdefault(rank, array("d"))
            times.extend([nan] * (known - len(times)))
            times.append(time_s)

    def _straggler(self, rank: RankT, stage: str, slow_steps: int) -> Straggler[RankT]:
        own = self.own_s[stage]
        pairs: list[tuple[float, float]] = []
        for number, time_s in enumerate(own[rank]):
            others = [times[number] for name, times in own.items() if name != rank and number < len(times)]
            present = [other_s for other_s in others if not isnan(other_s)]
            if present and not isnan(time_s):
                pairs.append((time_s, compared_with(time_s, present)))
        steps, all_steps = self._num_steps(stage), len(self._steps_ns)
        excess_s = [time_s - others_s for time_s, others_s in pairs]
        if is_at_times(slow_steps, steps):
            cost_s = sum(excess_s) / all_steps
            pairs = sorted(pairs, key=lambda pair: pair[0] - pair[1])[-slow_steps:]  # those in which it is slow
        else:
            cost_s = median(excess_s) * steps / all_steps
        own_s = median([time_s for time_s, _ in pairs])
        others_s = median([others_s for _, others_s in pairs if others_s > 0] or [0.0])
        return Straggler(rank, stage, cost_s, slow_steps, steps, own_s, others_s, all_steps)
