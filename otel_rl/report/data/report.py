"""The report as data; ``docs/report.schema.json`` is generated from these classes, so their docstrings document it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from otel_rl.report.data.details import Flops, Ledger, MemoryParts, OpenStageRow, PendingRun, Requests, StallRow
from otel_rl.report.data.finding import Findings, Unmade
from otel_rl.report.data.ranks import OfRank, Rank
from otel_rl.report.data.roles import RoleRow, Trajectories
from otel_rl.report.data.rule_settings import RuleSettings
from otel_rl.report.data.time_use import Efficiency

FORMAT: Final = "otel_rl.report/2"
"""Changes when a field goes or changes its meaning; a new field does not change it."""

State = Literal["alive", "finished", "failed", "killed", "interrupted", "unwritten", "moved", "unknown"]
Wall = Literal["step", "stage"]
MemoryKind = Literal["host rss", "device allocated", "device reserved"]
Follows = Literal["", "failure", "loss"]
"""What an exception followed, by its kind: the failure of a process that was called, or the loss of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSeconds(OfRank):
    """One rank's own time in a stage: median of the averaged steps that have it."""

    own_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of the job; a run that was resumed has several."""

    id: str
    state: State
    """`alive`: a process lives; `failed`: an exception ended it, whoever was killed after; `killed`: gone with open
    stages; `interrupted`: the program exited inside a step; `unwritten`: it ended by itself before all was on disk;
    `moved`: it went on in another folder, as this one was moved; `finished`: tear-down recorded."""
    begin_ns: int
    end_ns: int
    """Last recorded time, ns since 1970; of an attempt that is alive, that of the report."""
    steps: int
    ranks: int
    setup_s: float | None
    """From the start of the slowest rank's process to its first step; null when that was not recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRow:
    """What loops of the last attempt train by one algorithm."""

    algorithm: str
    """Empty when unknown."""
    model: str
    loops: list[str]
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An exception that ended a step on one rank."""

    attempt: str
    rank: Rank
    loop: str
    """Numbers of steps are those of their loop: a second one of a process is `train.2`."""
    step: int
    stage: str
    """The innermost stage that it passed through."""
    error: str
    follows: Follows
    """What it followed by its kind: `failure` of a process that was called, or `loss` of one; empty: it may be the
    cause of others."""


@dataclass(frozen=True, slots=True)
class RankStep:
    """What one rank calls a step."""

    rank: int
    loop: str
    iteration: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDisagreement:
    """Ranks of one role that call the same step, the k-th of each, by different numbers."""

    attempt: str
    role: str
    steps: int
    compared: int
    first: list[RankStep]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockSet:
    """The wall clock of one rank was set between two steps; durations do not depend on it."""

    attempt: str
    rank: Rank
    loop: str
    step: int
    """The first step after it."""
    by_s: float
    """Negative where the clock was set back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Step times in seconds over the averaged steps of all ranks."""

    recorded: int
    """Finished steps, each counted once however many ranks took part."""
    averaged: int
    """Those that averages are made of."""
    warmup: int
    """First steps after set-up that averages leave out, over all attempts."""
    first: int | None
    """Number of the first step, as the framework counts."""
    last: int | None
    loops: int
    """Training loops of a process, each with its own numbers of steps; the most of any attempt."""
    median_s: float
    p95_s: float
    total_s: float
    """Mean over the ranks of their summed step times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """One stage over the averaged steps; `rl.other` is what lies under no stage."""

    stage: str
    inside: str | None
    """The stage that it lies in; null directly in the step."""
    calls: int
    share: float
    """Share of the step time; overlapping calls count once."""
    median_s: float
    """Time of one call; for `rl.other` of one step of one rank."""
    p95_s: float
    total_s: float
    """Mean over the ranks of the time that each spent in it."""
    comm_share: float
    """Part of the stage's summed calls in collectives that Python sees."""
    is_comm_hidden: bool
    """Collectives inside cannot be separated, so own times are upper bounds and name no rank."""
    is_host_clock: bool
    """The times are those of launching device work, not of the work."""
    is_device_clock: bool
    """The times are those of the device; the stage in which the host waits for it has them too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceRow:
    """Own times of one stage by rank: its calls without the collectives inside them."""

    stage: str
    own: list[RankSeconds]
    is_comparable: bool
    """False if hidden collectives or launch times forbid to compare ranks."""
    straggler: Rank | None
    """The rank that `efficiency.stragglers` names first for the stage."""
    tied: list[Rank]
    """The other ranks that it names there."""
    ratio: float | None
    """Own time of that rank, or else the longest, over the median of the others; null if it is slow at times only."""
    excess_s: float | None
    """What that rank costs per step, or else the longest own time minus the median of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankComm(OfRank):
    """The collectives of one rank in a stage, mean per averaged step."""

    count: float
    time_s: float
    """Waiting for the other ranks included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommRow:
    """The collectives that Python saw inside one stage and inside the stages in it."""

    stage: str
    """`rl.train.comm`: those that lie under no stage."""
    ranks: list[RankComm]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkRow(OfRank):
    """What one rank handled in all finished training steps; evaluation is not in it."""

    samples: int | None
    """Null if no rollout says `rl.sample.batch_size`."""
    prompt_tokens: int | None
    """Null if no rollout says `rl.tokens.prompt`."""
    response_tokens: int | None
    """Null if no rollout says `rl.tokens.response`."""
    environment_tokens: int | None
    """Tokens that tools or an environment wrote into the responses of rollouts; null if no rollout says
    `rl.tokens.environment`."""
    padding_tokens: int | None
    """Padding positions of all training forwards; null if one with `rl.tokens` lacks `rl.tokens.padding`."""
    train_tokens: int | None
    """Tokens of all training forwards that the loss uses: without prompts and those of an environment. Null if no
    forward, and no `rl.train` around them, says `rl.tokens` or `rl.tokens.response`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Work per second of all ranks together, over the averaged steps."""

    work: Literal["rollout", "train"]
    unit: Literal["response tokens", "tokens", "samples"]
    wall: Wall
    """What it was divided by: the step time, or the time in the stage that does the work."""
    per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPeak(OfRank):
    """Highest memory of one rank, and the stage in which it last rose."""

    kind: MemoryKind
    bytes: int
    is_exact: bool
    """False: a lower bound, since the peak may lie between two readings."""
    stage: str
    """In which it last rose by more than 0.1 %; `rl.other`: in none; `rl.loop`: somewhere between two readings."""
    iteration: int | None
    """Step in which that was; null outside of any step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One number over the steps: mean of the finite values of the ranks that reported it."""

    name: str
    qualifiers: dict[str, str]
    """Attributes that distinguish it from others of the same name."""
    unit: str
    first: float | None
    """The first finite value."""
    last: float | None
    """The value of the last step; null if that is NaN or infinite, or if there is none."""
    mean: float | None
    low: float | None
    high: float | None
    nonfinite: int
    """Recorded values of single ranks that were NaN or infinite."""
    steps: list[int | None]
    """Number of the step of each value; null outside of finished steps."""
    values: list[float | None]
    """One per step; null if no rank had a finite value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Records that were given up, values that were changed, or errors inside otel_rl."""

    what: Literal["dropped", "changed", "error"]
    signal: str
    """`traces`, `metrics` or `logs`; of dropped records only."""
    reason: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedFile:
    """Bytes of a journal that could not be read."""

    writer: str
    places: int
    bytes: int
    reason: str
    """Reason of the first place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LongStep:
    """The one step that is much longer than all others."""

    step: int
    time_s: float
    """On the rank where it took longest."""
    ratio: float
    """That over the median step time."""
    stage: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that `otel-rl report` says about a run; times in seconds, sizes in bytes, shares 0..1."""

    format: str
    run: str
    path: str
    state: State
    """State of the last attempt."""
    system: str
    """The training framework; empty when unknown."""
    system_version: str
    algorithm: str
    """Algorithm of the first training."""
    model: str
    roles: list[RoleRow]
    """The processes of a run with a driver, or with others beside its ranks; empty if all of them hold the steps."""
    trainings: list[TrainingRow]
    """In order of time; loops in a row with the same algorithm and model are one."""
    settings: dict[str, float]
    """Settings of rank 0 in the newest attempt, named as in the vocabulary without `rl.settings.`; empty if unknown."""
    begin_ns: int
    end_ns: int
    duration_s: float
    """From the first to the last record of all attempts; until now if the last one is alive."""
    ranks: list[Rank]
    missing_ranks: int
    """Further ones of the last attempt, whose journals are not here."""
    attempts: list[Attempt]
    steps: StepTimes
    stages: list[StageRow]
    balance: list[BalanceRow]
    efficiency: Efficiency
    comm: list[CommRow]
    work: list[WorkRow]
    rates: list[Rate]
    requests: Requests
    trajectories: Trajectories | None
    """The trajectories of processes that hold no steps, and of a driver; null if none was recorded."""
    flops: Flops
    ledger: Ledger
    memory: list[MemoryPeak]
    memory_parts: list[MemoryParts]
    series: list[Series]
    numbers: list[Series]
    """What the training recorded by itself with `otel_rl.record`, as `user.NAME`."""
    failures: list[Failure]
    """Exceptions that ended steps, in order of time; such a step is not finished."""
    unseen_steps: int
    """Steps of all ranks with metrics and no spans, not sampled or given up; then no goodput is given."""
    disagreements: list[StepDisagreement]
    """Empty if the ranks agree about their steps, or if spans were lost."""
    clocks_set: list[ClockSet]
    """In order of time. Times of a process are by its clock as that was when it began."""
    stalls: list[StallRow]
    """Stalls of the last attempt, in the order in which they were found."""
    open_stages: list[OpenStageRow]
    pending: list[PendingRun]
    """Empty if the user named the run."""
    losses: list[Loss]
    damage: list[DamagedFile]
    findings: Findings
    rules: RuleSettings
    """What a user changed of the rules that make the findings."""
    unmade: list[Unmade]
    """Parts that are missing here because of errors in otel_rl; empty as a rule."""

    @property
    def is_empty(self) -> bool:
        """Return whether nothing was recorded, or nothing of it can be read."""
        return not self.attempts and not self.unseen_steps
