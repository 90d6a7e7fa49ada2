"""What the rules find in a run, as data, and what could not be made of its report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from otel_rl.report.data.ranks import Rank

Kind = Literal["time", "learn", "health"]
Severity = Literal["alarm", "warning", "note"]
"""`alarm`: act now, tuning can wait; `warning`: look at it; `note`: nothing is wrong."""
Value = bool | float | int | str | list[int] | list[str]
Part = Literal["section", "curve", "finding"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one rule says of this run."""

    rule: str
    """Name of the rule; docs/findings.md lists them."""
    kind: Kind
    severity: Severity
    """`alarm`: act now; `warning`: look at it; `note`: nothing is wrong."""
    sentence: str
    advice: str
    """What to look at or to do next; empty if there is nothing, or if an alarm comes first."""
    values: dict[str, Value]
    """The values of the sentence: finite numbers in seconds, bytes, shares 0..1; ranks, stages and other names."""
    step: int | None = None
    """The step in which it is seen, of several the first; null if it is no matter of single steps."""
    since: int | None = None
    """The step from which on it holds; null if it has no begin, or if that is not known."""
    rank: Rank | None = None
    """The process that it is about, of several the worst; null if it is about all, or about none."""
    stage: str | None = None
    """The stage that it is about; null if there is none."""
    told_ns: int | None = None
    """When the sidecar told it while the run went on, ns since 1970; null if it did not, or told that it is over."""
    told_step: int | None = None
    """The last step then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What the rules say, the worst first in each list."""

    time: list[Finding]
    """Where the time goes, and what would gain most."""
    learn: list[Finding]
    """Whether the model learns."""
    health: list[Finding]
    """Memory, errors, losses, missing ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmade:
    """A part of the report that is missing because of an error in otel_rl."""

    part: Part
    name: str
    """Name of the rule, the metric or the section; `TIME`, `LEARN` or `HEALTH` for all findings of one kind."""
