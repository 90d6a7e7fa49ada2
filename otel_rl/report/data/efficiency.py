"""Where the time went, as data: slow ranks, slow communication, what each rank did, bubbles, goodput."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from otel_rl.analysis.many_steps import is_at_times, is_mean
from otel_rl.report.data.ranks import OfRank

BubbleKind = Literal["data", "queue", "pipeline", "other", "skew"]
UNTOLD: Final = (
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
    """Its own time in the stage, median of the averaged steps that have it; of a rank that is slow at times, in fewer
    than half of these, of the steps in which it is slow."""
    ratio: float
    """That over the median of the other ranks, those that are as slow left out."""
    cost_s: float
    """Own time minus the median of these in the same step, per step: median of the steps that have the stage, times the
    part of the steps that have it; of a rank that is slow at times the mean of all steps. Where all waits are known, at
    most what a peer waited in a mean step."""
    share: float
    """Cost over the median step time; of a rank that is slow at times, and of a stage that not every step has, over the
    mean one."""
    slow_steps: int
    """Averaged steps in which it was the slowest, or as slow."""
    steps: int
    """Averaged steps that have the stage."""
    all_steps: int
    """Averaged steps, with the stage or without."""
    pipeline: int | None
    """The pipeline stage (`rl.rank.pp`); null where it is not known."""

    @property
    def is_at_times(self) -> bool:
        """Whether it is slow in fewer than half of the steps that have the stage."""
        return is_at_times(self.slow_steps, self.steps)

    @property
    def of_step(self) -> str:
        """Say what ``share`` is a part of."""
        return "mean step" if is_mean(self.slow_steps, self.steps, self.all_steps) else "median step"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowCommunication:
    """Collectives that take long on every rank alike, so that no rank is to blame."""

    role: str
    stage: str
    """`rl.train.comm`: those under no stage."""
    transfer_s: float
    """Per step, median: the least that any rank spent in the collectives without waiting."""
    share: float
    """Of the step, median."""
    pipeline: int | None
    """The pipeline stage (`rl.rank.pp`); null where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTime(OfRank):
    """What one rank did, mean per averaged step; the parts add up to the step time where stages do not overlap."""

    steps: int
    step_s: float
    active_s: float
    """In stages, without the collectives and the `rl.idle` inside them."""
    wait_s: float
    """In collectives, for slower ranks: in each beyond the time of the rank that was in it for the shortest time."""
    transfer_s: float
    """The remainder of the time in collectives."""
    is_wait_exact: bool
    """False: `wait_s` is a lower bound and `transfer_s` an upper one, since not every collective was recorded on every
    rank of its group; of those of a stage only the 32 longest of each rank are."""
    inseparable_s: float
    """In stages that hide collectives or measure launches only."""
    idle_s: float
    """In `rl.idle`, also inside other stages."""
    other_s: float
    """Under no stage."""
    train_tokens: float
    """Tokens of every training forward that the loss uses."""
    response_tokens: float
    """Generated for training."""
    relative_score: float | None
    """Against the fastest peer in each stage, weighted by time: 1 as fast, 0.5 takes twice as long; below 0.75 it is
    slow by the measure of nvidia-resiliency-ext. Null without peers, or where no stage is comparable."""
    individual_score: float | None
    """The last tenth of the steps against its own best tenth, likewise; null below ten steps."""
    slowdown: float | None
    """Step time if this rank were as it is and its peers ideal, over the ideal one; null where it cannot be told."""
    pipeline: int | None
    """The pipeline stage (`rl.rank.pp`); null where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """The steps of the ranks of one role and pipeline stage against ideal ones, in which each takes their mean."""

    role: str
    steps: int
    """Averaged steps of which it can be told: every rank has the same calls, and their collectives can be separated."""
    actual_s: float
    """Time under stages per step, waits included."""
    ideal_s: float
    slowdown: float
    """Actual over ideal: 1 for a balanced job."""
    pipeline: int | None
    """The pipeline stage (`rl.rank.pp`); null where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBubble(OfRank):
    """One bubble of one rank, mean per averaged step."""

    time_s: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BubbleRow:
    """Waiting of one kind, over the averaged steps."""

    kind: BubbleKind
    """`data`, `queue`, `pipeline`: the reason of `rl.idle`; `other`: another reason, or none; `skew`: in collectives,
    for slower peers."""
    denominator: Literal["step"]
    """What the shares are of: the step time."""
    share: float
    """Of all ranks."""
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
    """Of the ranks together: the parts add up to it exactly."""
    parts: list[GoodputPart]
    is_idle_exact: bool
    """False: ranks waited for slower ones for longer than is known (see `is_wait_exact` of the ranks), so `idle` is a
    lower bound, and of productive, overhead and other the true ones may be shorter."""
    padding_share: float | None
    """Padding positions of all positions of the training forwards: shown beside the parts, it is none of them. Null
    where a training forward with `rl.tokens` lacks `rl.tokens.padding`, or none has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Where the time went."""

    stragglers: list[StragglerRow]
    """The costliest first."""
    slow_communication: list[SlowCommunication]
    ranks: list[RankTime]
    slowdowns: list[Slowdown]
    bubbles: list[BubbleRow]
    """Those that take any time."""
    goodput: list[GoodputRow]
    """One for each attempt, the last one for all; empty where no time was recorded."""

    def of_stage(self, pipeline: int | None) -> str:
        """Name peers by their pipeline stage where there are several; a text that follows "rank"."""
        several = len({row.pipeline for row in self.ranks}) > 1
        return f" of pipeline stage {pipeline}" if several and pipeline is not None else ""
