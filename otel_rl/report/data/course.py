"""How a run went from step to step, as data: what the page draws beside the rows of the report.

It grows with steps times ranks, so it is no part of the report and of its JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from otel_rl.report.data.ranks import OfRank, Rank
from otel_rl.report.data.report import MemoryKind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MEDIAN: Final = "of median time"
"""Why a step is kept that stands for most."""
RANK_NUMBERS: Final = ("active", "wait", "transfer", "idle", "other", "train_tokens", "response_tokens")
"""What is known of each rank in each step: seconds, and tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCourse:
    """The finished steps of the last training loop, in order; of a step that was made again the newest."""

    attempts: Sequence[str] = ()
    """The attempt of each step."""
    loop: str = ""
    steps: Sequence[int] = ()
    time_s: Sequence[float] = ()
    """Mean over the ranks that have the step."""
    stages: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Seconds of each step by stage, mean over its ranks, `rl.other` for what lies under none."""
    is_averaged: Sequence[bool] = ()
    """False for the first steps after set-up, which averages leave out."""
    has_other_loops: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCourse:
    """What each rank did in each step of ``StepCourse``."""

    ranks: Sequence[Rank] = ()
    peers: Sequence[int] = ()
    """A number for each rank that those of its role and pipeline stage share."""
    numbers: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    """By one of ``RANK_NUMBERS``: a row for each rank, a column for each step, NaN where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCourse(OfRank):
    """Memory of one kind of one process at the end of each step."""

    kind: MemoryKind
    steps: Sequence[int]
    bytes: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCourse:
    """One number of the rollout requests that are spans, by step; evaluations are left out."""

    name: str
    """The attribute; empty for the duration."""
    steps: Sequence[int]
    counts: Sequence[int]
    median: Sequence[float]
    p99: Sequence[float]
    longest: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """The spans of one process in one step, as columns."""

    role: str
    rank: int
    begin_ns: Sequence[int]
    """After the begin of the step; by the clock of the process."""
    end_ns: Sequence[int]
    level: Sequence[int]
    """How deep inside others each lies; several that overlap at one level lie below each other."""
    labels: Sequence[str]
    is_wait: Sequence[bool]
    """Waits and collectives."""
    ids: Sequence[str]
    left_out: int
    """Spans that are not here: the shortest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeline:
    """The spans of one step."""

    step: int
    attempt: str
    trace: str
    why: str
    """Why this step is among those that are kept."""
    time_ns: int
    lanes: Sequence[Lane]
    processes: int
    """Number of processes that have spans, with a lane or without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How a run went from step to step."""

    steps: StepCourse = field(default_factory=StepCourse)
    ranks: RankCourse = field(default_factory=RankCourse)
    memory: Sequence[MemoryCourse] = ()
    requests: Sequence[RequestCourse] = ()
    spans: Sequence[StepTimeline] = ()
    """The spans of chosen steps."""
