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
class GaugeCourse:
    """A gauge of rollouts, of an engine or of a device, by step."""

    name: str
    label: str
    """What it is told apart by from others of its name: an outcome, a server; empty if it is the only one."""
    rank: Rank | None = None
    """The process, where each has its own."""
    steps: Sequence[int]
    values: Sequence[float]


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
class Arrow:
    """From a rollout to where it is trained on; what lies in another step begins or ends at the edge."""

    label: str
    begin: tuple[int, int] | None
    """The lane and the place in it of the box that it leaves at its end; None: an earlier step."""
    end: tuple[int, int] | None
    """Likewise the box that it meets at its begin, or at its end if that took the rollout; None: a later step."""
    is_taken: bool = False
    """It meets the end of the box."""


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
    arrows: Sequence[Arrow] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRow(OfRank):
    """One sample that has a record; what is None or empty is not known."""

    step: int
    group: str
    id: str
    reward: float | None
    rewards: Mapping[str, float]
    """By reward function."""
    advantage: float | None
    prompt_tokens: int | None
    response_tokens: int | None
    environment_tokens: int | None
    turns: int | None
    tool_calls: int | None
    finish: str
    error: str
    policy_version: int | None
    discarded: str
    """Why it is not trained on; empty if it is."""
    kept: str
    """Why it has a record, if not all of its step have one."""
    prompt: str
    response: str
    """Texts where the user had them recorded."""
    span: str
    """The id of the span that made it."""

    @property
    def length(self) -> int:
        """Tokens of its response, those of an environment included; -1 if unknown."""
        return -1 if self.response_tokens is None else self.response_tokens + (self.environment_tokens or 0)

    @property
    def end(self) -> str:
        """Return how it ended."""
        return self.error or self.finish


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleStep:
    """The samples that a step made."""

    step: int
    attempt: str
    trace: str
    count: int
    """Those that have a record."""
    groups: int
    mean_reward: float
    """NaN if no reward is known."""
    longest: int
    """Tokens; -1 if unknown."""
    rows: Sequence[SampleRow]
    """By group; of many only whole groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCourse:
    """The samples of chosen steps, and what stands out among all that were read."""

    steps: Sequence[SampleStep] = ()
    extremes: Mapping[str, SampleRow] = field(default_factory=dict)
    """By what it is: `longest`, `best`, `worst`, `most turns`."""
    count: int = 0
    """Records that were read."""
    of_steps: int = 0
    """Steps that have some."""
    ends: Mapping[str, int] = field(default_factory=dict)
    """Samples by how they ended."""
    discarded: Mapping[str, int] = field(default_factory=dict)
    """Samples that are not trained on, by reason."""
    is_part: bool = False
    """The run has more records than are read: those of other steps, or further ones of a step, are not in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """How much of a run is on disk."""

    records: Mapping[str, int] = field(default_factory=dict)
    """By signal: `traces`, `metrics`, `logs`."""
    bytes: int = 0
    processes: int = 0
    """Those that wrote a journal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How a run went from step to step."""

    steps: StepCourse = field(default_factory=StepCourse)
    ranks: RankCourse = field(default_factory=RankCourse)
    memory: Sequence[MemoryCourse] = ()
    requests: Sequence[RequestCourse] = ()
    spans: Sequence[StepTimeline] = ()
    """The spans of chosen steps."""
    gauges: Sequence[GaugeCourse] = ()
    samples: SampleCourse = field(default_factory=SampleCourse)
    recorded: Recorded = field(default_factory=Recorded)
