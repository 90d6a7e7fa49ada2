"""Details of the report as data: requests, FLOPs, ledger, open stages, memory; ``report.py`` holds the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from otel_rl.report.data.ranks import OfRank, Rank

Scope = Literal["update", "logprob", "step"]
SCOPES: Final[tuple[Scope, ...]] = ("update", "logprob", "step")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """Values of many requests; each quantile is the least value that the share of the requests does not exceed."""

    count: int
    median: float
    p99: float
    longest: float
    """The greatest value, always exact."""
    is_exact: bool
    """Median and p99 are exact, as they are while all these requests are spans. Else they are estimates, from counts of
    all requests by buckets."""
    error: float | None
    """Median and p99 are off by at most this part of the exact value: 0 if exact, below 0.1 by default. Null if a
    bucket has no such bound, as the lowest: up to a microsecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """The rollout requests of one engine, of all processes; null if no request has the number."""

    engine: str
    models: list[str]
    """Those of different processes, as ranks with paths of their own; of an engine of which one process uses several
    models, each has a row."""
    is_bulk: bool
    """Submitted all at once, so that `ttft_s` is the position in the queue."""
    is_evaluation: bool
    count: int
    """Requests that are over, however they ended."""
    aborted: int
    timed_out: int
    clipped: int | None
    """Ended at the length limit, whatever the last token is. TRL's own share lacks those whose last token is a pad
    token that was sampled. Null if the engine does not say of some why they ended."""
    errors: int
    preemptions: int | None
    """Null if the requests do not have them: see `engine_preemptions`."""
    ttft_s: Quantiles | None
    """First token - submit."""
    queue_s: Quantiles | None
    """Scheduled - submit."""
    prefill_s: Quantiles | None
    """First token - scheduled."""
    tpot_s: Quantiles | None
    """(Last - first token) / (n - 1). The longest is often that of two tokens, hence one single decoding step."""
    duration_s: Quantiles | None
    prompt_tokens: Quantiles | None
    response_tokens: Quantiles | None
    cached_tokens: Quantiles | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTail:
    """What the slowest requests of the rollouts of the training cost, mean by the rollouts' time."""

    slowest: float
    """Which: this share of the requests."""
    share: float
    """Part of the rollouts' time in which nothing else is left to generate."""
    step_share: float | None
    """The same as part of the step time; null if the rollouts are no stage `rl.sample`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePreemptions:
    """Preemptions of all requests of an engine together."""

    engine: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRequests:
    """Requests with something that cannot be."""

    reason: str
    """A word of docs/requests.md."""
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """The rollout requests of a run."""

    rows: list[RequestRow]
    tails: list[RequestTail]
    bubble: float | None
    """Slots of the engines that idle at the end of rollouts, as part of slots x rollout time."""
    kv_cache_peak: float | None
    engine_preemptions: list[EnginePreemptions]
    """Preemptions of engines whose requests do not have them."""
    spans: int
    omitted: int
    """Requests that did not become spans, which is decided at the end of a rollout."""
    bad: list[BadRequests]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFlops(OfRank):
    """How fast one rank computed, median over its steps that did."""

    scope: Scope
    """`update`: forward to optimizer; `logprob`: log-probabilities and values; `step`: both, by the step time."""
    steps: int
    per_second: float
    """Operations of the network on this rank's device, padding excluded."""
    mfu: float | None
    """Null if no peak is known, as of a CPU."""
    peak: float | None
    """Operations per second of one device."""
    peak_source: str
    formula: str
    is_host_clock: bool
    """The time is that of launching device work, so the numbers may be too high."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flops:
    """The operations of the network."""

    ranks: list[RankFlops]
    notes: list[str]
    """What they assume, or why they cannot be known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerMismatch:
    """One fault of one step, and the ranks that have it."""

    attempt: str
    loop: str
    step: int
    boundary: str
    """Where it showed; `rl.sample -> rl.train.forward` for what two of them disagree about."""
    fault: str
    """In words; docs/model.md lists them."""
    ranks: list[Rank]
    of_ranks: int
    """Ranks that have rows of the step."""
    samples: list[str]
    """Ids of the samples that have it, or of their groups, at most 16; empty where the fault is one of a batch."""
    num_samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The correctness ledger."""

    steps: int
    """Steps of which at least one rank has rows."""
    rows: int
    mismatches: list[LedgerMismatch]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCollective:
    """The collective that a rank is in; group and sequence name it on the other ranks."""

    operation: str
    group: str | None
    """Null if the process group is unknown."""
    group_size: int | None
    sequence: int | None
    """Which collective of its group, from 1; null if it is not ordered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStageRow:
    """A stage without an end: where a rank is now, or was last seen, at most a second before it died."""

    attempt: str
    """Empty if the rank does not know it yet."""
    role: str
    rank: int
    stage: str
    inside: list[str]
    """The open stages that it lies in, outermost first."""
    since_ns: int
    open_s: float
    """Until now for a living process; until its last record, at least four fifths of it, for a dead one."""
    longest_s: float | None
    """Longest call of such a stage that ended, on any rank."""
    calls_known: bool
    """False if the rank does not know its attempt yet, so that its finished calls are unknown."""
    is_alive: bool
    is_certain: bool
    """The process is in this stage, or died in it, as its status page shows; else it may have left it since."""
    is_hanging: bool
    """The process lives; the stage is open for 10 s or more, and three times as long as its longest call that ended."""
    iteration: int | None
    collective: OpenCollective | None
    """Null if the stage is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StallRow:
    """A stage that held the run up, as it was found while it happened; docs/stalls.md says how."""

    id: str
    cause: str
    """`stage`, `collective`, `silent`, `stopped`, `dead` or `unseen`."""
    stage: str
    role: str
    rank: int
    step: int | None
    chain: str
    """Who waits for whom, as sentences; of a stall that goes on as it is now, if it can be seen from here."""
    found_ns: int
    age_s: float
    """For how long nothing happened in the stage: when it was found, or until it ended."""
    normal_s: float | None
    """Median duration of its calls that ended; null if fewer than 3 did."""
    is_over: bool
    """It ended by itself; otherwise it goes on, or ended with its process."""
    waiting: int
    """Processes that waited for it."""
    evidence: str
    """Stacks and facts of the machine, as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRun:
    """A process beside the run that is in no run yet, as a rank before its process group is made."""

    path: str
    """Its own directory, for a report on it alone."""
    open_stages: list[OpenStageRow]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryParts(OfRank):
    """What the device of one rank held at the end of the step at which most was reserved; null is not known."""

    allocated_bytes: int
    """Live tensors."""
    reserved_bytes: int
    """Held by torch's allocator."""
    active_bytes: int | None
    """Live, or still in use by a stream."""
    requested_bytes: int | None
    """Live tensors as they were asked for."""
    inactive_split_bytes: int | None
    """Free parts of blocks that cannot be given back."""
    fragmentation: float | None
    """Inactive split over reserved."""
    slack: float | None
    """Reserved and not allocated, over reserved."""
    rounding: float | None
    """Allocated and not requested, over allocated."""
    non_torch_bytes: int | None
    """Highest of the run: in use below torch, by whatever process."""
    activation_bytes: int | None
    """Highest of the run: of one micro-batch, a lower bound unless its span says that it is exact."""
    kv_cache_bytes: int | None
    """Highest of the run: keys and values that an engine of this process kept."""
    kv_cache_size_bytes: int | None
    """Highest of the run: taken ahead of time for them, a pool or a static cache."""
    comm_estimate_bytes: int | None
    """Estimate: by what non-torch memory grew while process groups were made and first used."""
