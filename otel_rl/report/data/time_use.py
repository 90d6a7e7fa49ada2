"""Where the time went, as data: slow ranks, slow communication, what each rank did, bubbles, goodput."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from otel_rl.analysis.stragglers import is_at_times, is_mean, is_starved
from otel_rl.report.data.ranks import OfRank

BubbleKind = Literal["data", "queue", "pipeline", "controller", "other", "skew"]
WAITS_UNKNOWN: Final = (
    "not every collective is recorded on every rank of its group: of many in a stage only the 32 longest, of a "
    "process that died not the last ones, of a rank whose journal is not here none"
)
"""Why not all is known that ranks wait for slower ones."""
GoodputKind = Literal["productive", "overhead", "idle", "wasted", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerRow(OfRank):
    """A rank that is slow in a stage again and again; peers are the ranks of its role and pipeline stage."""

    stage: str
    own_s: float
    """Median own time of the averaged steps that have the stage; if it is slow in fewer than half of them, of those."""
    ratio: float
    """That over the median of the other ranks, without those that are as slow."""
    cost_s: float
    """What it costs per step: own time minus the median of the others; if all waits are known, at most what a peer
    waited in a mean step. docs/report.md has the definition."""
    share: float
    """Cost over the median step time; over the mean one if not every step has the stage or is slow."""
    slow_steps: int
    """Averaged steps in which it was the slowest, or as slow."""
    steps: int
    """Averaged steps that have the stage."""
    all_steps: int
    """Averaged steps, with the stage or without."""
    pipeline: int | None
    """The pipeline stage (`rl.rank.pp`); null if unknown."""

    @property
    def is_at_times(self) -> bool:
        """Return whether it is slow in fewer than half of the steps that have the stage."""
        return is_at_times(self.slow_steps, self.steps)

    @property
    def of_step(self) -> str:
        """Return what ``share`` is a part of."""
        return "mean step" if is_mean(self.slow_steps, self.steps, self.all_steps) else "median step"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRankRow(OfRank):
    """What a slow rank costs over all its stages, in the mean step; docs/efficiency.md has the definition."""

    stages: list[str]
    """Those in which it is slow, the costliest first."""
    is_everywhere: bool
    """It is slow in most of its stages by time."""
    own_s: float
    """Own time in these stages; if it is slow everywhere, in all."""
    others_s: float
    """What its peers take there."""
    cost_s: float
    """The mean step, minus the one that the run would have with this rank as fast as its peers."""
    comm_s: float
    """The part of the cost that it is too slow inside collectives."""
    share: float
    """Cost over the mean step."""
    core_share: float | None
    """CPU time over own time: how much of a core it got while it worked; null if that was not recorded."""
    others_core_share: float | None
    """The median of its peers'."""
    pipeline: int | None
    """The pipeline stage (`rl.rank.pp`); null if unknown."""

    @property
    def is_starved(self) -> bool:
        """Return whether it is slow because it gets less of a core than its peers."""
        return is_starved(self.core_share, self.others_core_share)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowCommunication:
    """Collectives that take long on every rank alike, so that no rank is to blame."""

    role: str
    stage: str
    """`rl.train.comm`: those under no stage."""
    transfer_s: float
    """Per step, median: the least that any rank spent in the collectives without waiting."""
    share: float
    """Median share of the step."""
    count: float
    """Collectives per step, without hidden ones."""
    pipeline: int | None
    """The pipeline stage (`rl.rank.pp`); null if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTime(OfRank):
    """What one rank did, mean per averaged step; the parts add up to the step time: each moment counts once."""

    steps: int
    step_s: float
    active_s: float
    """In stages, without the collectives and the `rl.idle` inside them."""
    wait_s: float
    """In collectives, for slower ranks: in each beyond the time of the rank that was in it for the shortest time."""
    transfer_s: float
    """The remainder of the time in collectives."""
    is_wait_exact: bool
    """False: `wait_s` is a lower bound and `transfer_s` an upper one, since not every collective was recorded."""
    inseparable_s: float
    """In stages that hide collectives, without those that are seen."""
    idle_s: float
    """In `rl.idle`, also inside other stages."""
    other_s: float
    """Under no stage."""
    cpu_share: float | None
    """CPU time of the training thread over the step time; null if it was not recorded."""
    train_tokens: float | None
    """Tokens of every training forward that the loss uses; null if unknown."""
    response_tokens: float | None
    """Generated for training; null if unknown."""
    relative_score: float | None
    """Against the fastest peer in each stage, weighted by time: 0.5 takes twice as long; nvidia-resiliency-ext calls a
    rank below 0.75 slow. Null if no stage is comparable."""
    individual_score: float | None
    """The last tenth of its steps against its best tenth, likewise; null below ten steps."""
    slowdown: float | None
    """Step time with this rank as it is and its peers ideal, over the ideal one; null if unknown."""
    pipeline: int | None
    """The pipeline stage (`rl.rank.pp`); null if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """The steps of the ranks of one role and pipeline stage against ideal ones, in which each takes their mean."""

    role: str
    steps: int
    """Averaged steps in which every rank has the same calls, with separable collectives."""
    actual_s: float
    """Time under stages per step, waits included."""
    ideal_s: float
    slowdown: float
    """Actual over ideal: 1 for a balanced job."""
    pipeline: int | None
    """The pipeline stage (`rl.rank.pp`); null if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBubble(OfRank):
    """One bubble of one rank, mean per averaged step."""

    time_s: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BubbleRow:
    """Waiting of one kind, over the averaged steps."""

    kind: BubbleKind
    """The reason of `rl.idle` (`other`: another, or none), or `skew`: waits for slower peers in collectives."""
    denominator: Literal["step"]
    """What the shares are of: the step time."""
    share: float
    """Share over all ranks."""
    is_exact: bool
    """False: it is a lower bound (only of `skew`, see `is_wait_exact` of the ranks)."""
    ranks: list[RankBubble]


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputPart:
    """Time of one kind."""

    kind: GoodputKind
    time_ns: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputRow:
    """The wall time of all ranks by kind: of each from the begin of its first container to the end of its last one."""

    attempt: str | None
    """Null for all attempts together."""
    ranks: int
    wall_ns: int
    """Wall time of the ranks together: the parts add up to it exactly."""
    parts: list[GoodputPart]
    setup_ns: int
    """Part of the overhead: from the start of each rank's process to its first step, imports included. A short run has
    little else."""
    is_idle_exact: bool
    """False: `idle` is a lower bound, since not all waits are known; productive, overhead and other may be less."""
    padding_share: float | None
    """Padding positions of all positions of the training forwards; null if a forward with `rl.tokens` does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Where the time went."""

    stragglers: list[StragglerRow]
    """The costliest first."""
    slow_ranks: list[SlowRankRow]
    """The ranks among them, the costliest first."""
    slow_communication: list[SlowCommunication]
    ranks: list[RankTime]
    slowdowns: list[Slowdown]
    bubbles: list[BubbleRow]
    """Those that take any time."""
    goodput: list[GoodputRow]
    """One for each attempt, the last one for all; empty where no time was recorded."""

    def of_stage(self, pipeline: int | None) -> str:
        """Name peers by their pipeline stage if there are several; a text that follows "rank"."""
        several = len({row.pipeline for row in self.ranks}) > 1
        return f" of pipeline stage {pipeline}" if several and pipeline is not None else ""
