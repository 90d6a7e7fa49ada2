"""What a report says of the model's operations and of the correctness ledger; ``model.py`` holds the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Scope = Literal["update", "logprob", "step"]
SCOPES: Final[tuple[Scope, ...]] = ("update", "logprob", "step")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFlops:
    """How fast one rank computed, median over its steps that did."""

    role: str
    rank: int
    scope: Scope
    """`update`: forward, backward, clipping and optimizer; `logprob`: log-probabilities and values; `step`: both, by
    the time of the whole step."""
    steps: int
    per_second: float
    """Operations of the model on this rank's device, padding excluded."""
    mfu: float | None
    """Null where no peak is known, as of a CPU."""
    peak: float | None
    """Operations per second of one device."""
    peak_source: str
    formula: str
    is_host_clock: bool
    """The time is that of launching device work, so the numbers may be too high."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flops:
    """The operations of the model."""

    ranks: list[RankFlops]
    notes: list[str]
    """What they assume, or why they cannot be known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRank:
    """A rank that has a fault."""

    role: str
    rank: int


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
    ranks: list[LedgerRank]
    of_ranks: int
    """Ranks that noted the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The correctness ledger."""

    steps: int
    """Steps of which at least one rank noted something."""
    rows: int
    mismatches: list[LedgerMismatch]
