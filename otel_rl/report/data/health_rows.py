"""What the rules of HEALTH read: rows of the report, and further ones that are made of its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from otel_rl.report.data.details import Ledger, OpenStageRow, RequestRow, StallRow
from otel_rl.report.data.devices import RankDevice
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import Attempt, DamagedFile, Follows, Loss, MemoryKind, StepDisagreement

NO_LEDGER: Final = Ledger(steps=0, rows=0, mismatches=[])


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """The memory of one process at the ends of its steps."""

    rank: Rank
    kind: MemoryKind
    """`device allocated` is what is live there, `device reserved` what its allocator holds."""
    place: str
    """The host, whose processes share the limit, or the device."""
    limit: int
    """Bytes of all that share the place; 0 if unknown."""
    steps: Sequence[int]
    """Without the first ones, in which every process grows."""
    bytes: Sequence[int]
    """One or more."""
    stage: str
    """The stage with most of the growth; empty if no stage has most of it."""
    share: float
    """Share of the growth."""
    is_rank: bool = True
    """Other processes of a run are watched as ranks are, and told apart from them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRank:
    """An exception that ended a step of a rank, or its set-up."""

    rank: Rank
    step: int | None
    """None outside of any step."""
    stage: str
    error: str
    is_end: bool
    """It ended the last attempt, too."""
    is_called: bool = False
    """It ended a call in a process that holds no steps, or a rollout in a driver's own, and no step."""
    follows: Follows = ""
    phase: str = ""
    """`set-up` or `tear-down`, outside of any step."""
    host: str = ""
    """By whose clock failures are in order; clocks of several hosts are not compared."""


@dataclass(frozen=True, slots=True)
class EndedEarly:
    """An attempt before the last one that failed or was killed."""

    attempt: Attempt
    cause: FailedRank | None
    """The exception that ended it; None if it was killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Updates:
    """The optimizer's updates of the rank that skipped most of them, in the last attempt."""

    steps: int
    skipped: int
    last_row: int
    """Steps at the end that skipped theirs, in a row."""
    since: int
    """The first step of that row, or the first that skipped."""


@dataclass(frozen=True, slots=True)
class StepTokens:
    """The tokens of a step, of the rank that has most."""

    step: int
    tokens: int
    rank: Rank


@dataclass(frozen=True, slots=True)
class LateLoop:
    """The event loop of a process that was late by a second or more inside steps."""

    rank: Rank
    lag_s: float
    step: int
    """The step in which it was latest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRow:
    """What an action did, with one outcome."""

    name: str
    kind: str
    """`checkpoint`, `stop` or `call`."""
    outcome: str
    """`done`, `rehearsed`, `failed` or `no_value`."""
    step: int
    """After which it was due last."""
    what: str
    """What it did last, in a sentence."""
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthRows:
    """The rows that the rules of HEALTH read."""

    attempt: Attempt | None = None
    """The last one."""
    planned: int = 0
    """Steps that it shall make; 0 if unknown."""
    ranks: Sequence[Rank] = ()
    missing_ranks: int = 0
    memory: Sequence[RankMemory] = ()
    """Memory of the ranks in the last attempt."""
    stalls: Sequence[StallRow] = ()
    open_stages: Sequence[OpenStageRow] = ()
    failures: Sequence[FailedRank] = ()
    """Failures that the run survived, and failures that ended the last attempt."""
    died: Sequence[OpenStageRow] = ()
    """Where the processes of the last attempt were that ended without an exception."""
    ended_early: Sequence[EndedEarly] = ()
    disagreements: Sequence[StepDisagreement] = ()
    """Disagreements in the last attempt."""
    ledger: Ledger = NO_LEDGER
    losses: Sequence[Loss] = ()
    damage: Sequence[DamagedFile] = ()
    unwritten: int = 0
    """Processes that ended by themselves before all was on disk."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Records that the server did not take, by signal."""
    updates: Updates | None = None
    requests: Sequence[RequestRow] = ()
    is_ahead: bool = False
    """Rollouts outlive their step: their requests are aborted by design, and go on."""
    preempted: Mapping[str, int] = field(default_factory=dict)
    """Preemptions by engine, where its requests do not have them."""
    kv_cache_peak: float | None = None
    step_tokens: Sequence[StepTokens] = ()
    """The steps of the last attempt."""
    devices: Sequence[RankDevice] = ()
    late_loops: Sequence[LateLoop] = ()
    actions: Sequence[ActionRow] = ()
    """What they did in the last attempt."""
