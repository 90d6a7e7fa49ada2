"""What processes did that hold no steps, as data: stages by role, trajectories, and what a step waits for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleStage:
    """The calls of one stage in the processes of a role, in all steps; stages inside others are listed, too."""

    stage: str
    calls: int
    median_s: float
    p95_s: float
    longest_s: float
    total_s: float
    """Sum over all calls and processes; overlapping calls count each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleRow:
    """The processes of one role."""

    role: str
    processes: int
    is_driver: bool
    """It holds the steps and calls the others."""
    is_rank: bool
    """They train, and count in goodput and wall time."""
    stages: list[RoleStage]
    """The most time first; empty for who holds the steps: a driver, or else the ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldStep:
    """A step that waited for few trajectories, of three times the median or longer, after all others had ended."""

    step: int
    trajectories: int
    """Long trajectories in the step, at least; the next fields are those of the one that ended last."""
    sample: str
    group: str
    """Both empty if unknown."""
    held_s: float
    share: float
    """The part of the step that was held."""
    duration_s: float
    """How long the trajectory took."""
    inside: str
    """What in it took most of its time: a stage, and the process that it ran in; empty if unknown."""
    inside_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectories:
    """The trajectories of a run; evaluations are only counted."""

    trajectories: int
    evaluated: int
    prompt_tokens: int
    response_tokens: int
    median_s: float
    p95_s: float
    longest_s: float
    longest_sample: str
    longest_group: str
    generating_s: float | None
    """How long the driver waits in a mean averaged step while a trajectory goes on; null on another clock than its."""
    late_s: float | None
    """How long it waits after the last of them has ended, likewise."""
    held: list[HeldStep]
    """Averaged steps in which the driver waited for these alone for a tenth of the step or more: the longest 16."""


SEPARATORS: Final = "_-/. "
"""What is between the name of a group and that of its sample."""


def which(sample: str, group: str) -> str:
    """Name a trajectory by its group, and by what its own name has beyond that; group 1 may have sample 12."""
    rest = sample.removeprefix(group)
    own = rest.lstrip(SEPARATORS) if rest[:1] in tuple(SEPARATORS) else sample
    return f"trajectory {own} of group {group}" if group else f"trajectory {own}"
