"""What the rules of TIME read: rows of the report, and further ones that are made of its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from otel_rl.report.data.details import RequestTail
from otel_rl.report.data.devices import RankDevice
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import LongStep, StageRow
from otel_rl.report.data.roles import RoleRow, Trajectories
from otel_rl.report.data.time_use import Efficiency

NoStepReason = Literal[
    "damaged", "nothing_yet", "nothing", "first_goes_on", "all_failed", "ended_in_first", "spans_unreadable",
    "spans_lost", "only_trained", "sets_up", "none_yet", "ended_in_setup", "only_evaluated", "not_trained", "none",
]  # fmt: skip
NOTHING: Final = Efficiency(
    stragglers=[], slow_ranks=[], slow_communication=[], ranks=[], slowdowns=[], bubbles=[], goodput=[]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoStep:
    """Why a run has no finished step."""

    reason: NoStepReason
    goes_on: bool
    """The run has just begun."""
    system: str = ""
    """The training framework; empty if unknown."""
    ending: str = ""
    """`killed`, `unwritten`, or the exception that ended the process; empty if that is unknown."""
    did_more: bool = False
    """It did more than its set-up."""


@dataclass(frozen=True, slots=True)
class StageShare:
    """The share of the step that a stage takes, without what is of another kind inside it."""

    stage: str
    share: float
    communication: float = 0.0
    """The part of the share in collectives, most of which may be waits for a slow rank."""


@dataclass(frozen=True, slots=True)
class Awaited:
    """The ranks for which the others wait in their mean step."""

    ranks: list[Rank] = field(default_factory=list)
    """The one that is waited for longest first; empty if no rank makes up half of the longest wait."""
    stage: str | None = None
    """The stage that explains it; None if none does."""
    more_s: float = 0.0
    """What these ranks spend there more than the others."""
    is_spread: bool = False
    """Every rank waits at least half as long as the one that waits longest: now for one rank, now for another."""


@dataclass(frozen=True, slots=True)
class SlowerSteps:
    """Steps that take longer from one step on."""

    step: int
    before_s: float
    after_s: float
    stage: str
    """The one that takes most of the difference; `communication` for all collectives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowProcess:
    """A process that works for a driver, and whose calls take longer than those of the others of its role."""

    rank: Rank
    peers: Sequence[Rank]
    stage: str
    own_s: float
    others_s: float
    """Medians."""
    cost_s: float
    """Its share of the mean step at most: the step may wait for something else meanwhile."""
    share: float


@dataclass(frozen=True, slots=True)
class GrowingStage:
    """A stage that takes longer from step to step."""

    stage: str
    steps: int
    first_s: float
    last_s: float
    share: float
    """The part of the mean step by which it takes longer."""


@dataclass(frozen=True, slots=True)
class FirstSubmit:
    """The first step, in which processes start that generate."""

    step: int
    time_s: float
    share: float


@dataclass(frozen=True, slots=True)
class SampleBuffer:
    """Prompts whose samples no step has taken yet, medians over the steps; rollouts outlive their step."""

    finished: float
    running: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRows:
    """The rows that the rules of TIME read, without the one step that would outweigh the others."""

    no_step: NoStep | None = None
    """The other fields are empty then."""
    step_s: float = 0.0
    """Mean."""
    median_s: float = 0.0
    stages: Sequence[StageRow] = ()
    shares: Sequence[StageShare] = ()
    efficiency: Efficiency = NOTHING
    awaited: Awaited = field(default_factory=Awaited)
    long_step: LongStep | None = None
    """The step that is left aside."""
    slower: SlowerSteps | None = None
    tails: Sequence[RequestTail] = ()
    roles: Sequence[RoleRow] = ()
    """Empty if no driver calls the ranks."""
    trajectories: Trajectories | None = None
    all_step_s: float = 0.0
    """The mean step with the one that is left aside: trajectories and what they cost are about all."""
    all_steps_s: float = 0.0
    """All these steps together."""
    settings: Mapping[str, float] = field(default_factory=dict)
    slow_process: SlowProcess | None = None
    growing: GrowingStage | None = None
    first_submit: FirstSubmit | None = None
    devices: Sequence[RankDevice] = ()
    buffer: SampleBuffer | None = None
    """None if rollouts end with their step, or nobody says how many there are."""

    def share_of(self, stage: str) -> float:
        """Return the share of the step of a stage that lies directly in it."""
        return sum(row.share for row in self.stages if row.stage == stage and row.inside is None)
