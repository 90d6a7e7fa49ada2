"""What the rules of time read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

PLURAL: Final = ("log-probabilities", "values", "rewards", "checkpoints")


@dataclass(frozen=True, slots=True)
class Use:
    """A part of the step time."""

    name: str
    """In plain words, as in "sampling takes"."""
    share: float
    communication: float = 0.0
    """The part of the share in collectives, most of which may be waits for a slow rank."""

    @property
    def takes(self) -> str:
        return f"{self.name} {'take' if self.name in PLURAL else 'takes'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRanks:
    """The ranks that are slow in the same way; the numbers are those of the slowest."""

    who: str
    """`rank 1`, or `ranks 2 and 3`."""
    rank: int
    are: str
    """`is` or `are`."""
    where: str
    """`everything`, or the stages."""
    stage: str
    """The one that costs most."""
    own_s: float
    others_s: float
    cost_s: float
    share: float
    is_everywhere: bool = False
    is_starved: bool = False
    core_share: float = 0.0
    often: str = ""
    """In which part of the steps, if it is slow at times only."""
    besides: str = ""
    """What the share leaves out of the step."""
    others: str = ""
    """A sentence on ranks that are slow elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowCalls:
    """Collectives that take long on every rank."""

    where: str
    """Times and stages."""
    stage: str
    share: float
    call_s: float
    """The mean one."""
    peers: str = ""
    """The ranks, if not all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerWait:
    """Waits of the ranks for each other."""

    share: float
    """Share of the step time of all ranks."""
    longest_s: float
    """Wait of the rank that waits longest, in its mean step."""
    step_s: float
    is_exact: bool = True
    is_spread: bool = False
    who: str = ""
    """For whom, if for the same ranks again and again."""
    rank: int | None = None
    reason: str = ""
    """What these do longer than the others."""


@dataclass(frozen=True, slots=True)
class Tail:
    """The slowest requests of the rollouts."""

    slowest: float
    """Their number, as a share."""
    share: float
    """Share of the rollout in which only they run."""
    step_share: float


@dataclass(frozen=True, slots=True)
class SampleCall:
    """One call of ``rl.sample``, and the stages inside it."""

    call_s: float
    share: float
    """Share of the step."""
    inside: Mapping[str, float]
    """Share of the call by stage."""


@dataclass(frozen=True, slots=True)
class Slower:
    """Steps that take longer from one step on."""

    step: int
    before_s: float
    after_s: float
    where: str
    """What takes most of the difference."""


@dataclass(frozen=True, slots=True)
class Long:
    """The one step that is much longer than all others."""

    step: int
    time_s: float
    ratio: float
    stage: str


@dataclass(frozen=True, slots=True)
class Late:
    """Waits of a driver for samples after their rollouts have ended, in the mean step."""

    late_s: float
    share: float
    asks: str = ""
    """Why, after a colon."""


@dataclass(frozen=True, slots=True)
class BesideTurns:
    """What takes most of the mean trajectory beside the turns of the policy, while a driver waits for rollouts."""

    stage: str
    time_s: float
    trajectory_s: float
    share: float
    """Share of the step: of the driver's wait as of the trajectory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldUp:
    """The trajectory that held a step longest."""

    which: str
    step: int
    held_s: float
    share: float
    """The part of this step that it held."""
    inside: str
    inside_s: float
    of_all: float
    """Share of all averaged steps that single trajectories held them."""
    others: str = ""
    """A sentence on further steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowProcess:
    """A process that works for a driver, and whose calls take longer than those of the others of its role."""

    who: str
    others: str
    """Such as `agent loop 1`, or `the other agent loops`."""
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
class Starting:
    """The first step, in which processes start that generate."""

    step: int
    time_s: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What the rules of time read."""

    no_step: str = ""
    """Why no step is finished."""
    goes_on: bool = False
    """The run has just begun."""
    step_s: float = 0.0
    """Mean."""
    median_s: float = 0.0
    uses: Sequence[Use] = ()
    """The largest first; together they are the step."""
    num_ranks: int = 0
    """Ranks that can be compared."""
    slow: SlowRanks | None = None
    calls: SlowCalls | None = None
    wait: PeerWait | None = None
    idle: Mapping[str, float] = field(default_factory=dict)
    """Share of the step by reason."""
    other: float = 0.0
    """Share of the step under no stage."""
    tails: Sequence[Tail] = ()
    sampling: SampleCall | None = None
    slower: Slower | None = None
    long: Long | None = None
    beside_turns: BesideTurns | None = None
    late: Late | None = None
    held: HeldUp | None = None
    slow_process: SlowProcess | None = None
    growing: GrowingStage | None = None
    starting: Starting | None = None
