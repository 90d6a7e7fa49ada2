"""The comparison of two runs as data; ``docs/compare.schema.json`` is generated from these classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from otel_rl.report.data.finding import Finding
from otel_rl.report.data.report import State

FORMAT: Final = "otel_rl.comparison/1"
"""Changes when a field goes or changes its meaning; a new field does not change it."""

Group = Literal["step", "stage", "rank", "throughput", "request", "memory", "learning", "trouble"]
Worse = Literal["more", "less", ""]
Verdict = Literal["worse", "better", "no_change", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """One of the two runs."""

    run: str
    path: str
    state: State
    """`alive`: it goes on, and is compared as far as it is."""
    system: str
    """The training framework; empty when unknown."""
    system_version: str
    algorithm: str
    model: str
    ranks: int
    steps: int
    """Finished ones."""
    step_s: float | None
    """Median over the averaged steps; null without one."""
    cpu_s: float | None
    """CPU time of a training thread in a step, mean; null if it was not recorded."""
    cpu_share: float | None
    """CPU time over the step time; null likewise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSteps:
    """Which steps of the last training loop are compared, without those after set-up."""

    paired: bool
    """True: steps of the same number are compared with each other. False: all of one run with all of the other."""
    a: int
    b: int
    first: int | None
    """The first step that both runs have; null if steps are not paired."""
    last: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedNumber:
    """One number in both runs."""

    name: str
    """The name of the number, as `--fail-on` takes it."""
    group: Group
    unit: str
    """`s`, `By`, `1` for shares, or another one; empty for none."""
    worse: Worse
    """What is worse; empty if neither is, and then there is no verdict."""
    a: float | None
    """The level in the first run; null if no step has it."""
    b: float | None
    difference: float | None
    """`b` minus `a`."""
    low: float | None
    """The limits of the difference; null for too few steps, and for numbers without scatter over the steps."""
    high: float | None
    relative: float | None
    """`difference` over `a`; null if that is 0."""
    steps: int
    """Steps that it was compared by; the fewer of both runs."""
    verdict: Verdict
    """`worse` or `better`: the limits are on one side of zero, and the difference is large enough to matter.
    `unknown`: too few steps, a busy machine, or there is no better direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCompared:
    """Numbers that are not compared."""

    names: list[str]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherSetting:
    """A setting that the runs have in different values."""

    name: str
    a: float | None
    b: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What the user does not accept."""

    text: str
    name: str
    holds: bool | None
    """Null if the runs do not tell."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What `otel-rl compare A B` says: how B differs from A; times in seconds, sizes in bytes, shares 0..1."""

    format: str
    a: ComparedRun
    b: ComparedRun
    notes: list[str]
    """What to keep in mind: the runs differ in more than their code, or one goes on."""
    steps: ComparedSteps
    busy: str
    """The run whose machine was busy otherwise, `a` or `b`; empty if none. Then times have no verdict."""
    chance: float
    """How likely a number is outside of its limits by chance: 0.01 over the count of numbers that have a verdict."""
    numbers: list[ComparedNumber]
    not_compared: list[NotCompared]
    settings: list[OtherSetting]
    findings: list[Finding]
    """Alarms and warnings of B's report by rules of which A's report has none."""
    conditions: list[Condition]
    """The conditions of `--fail-on`, judged."""

    @property
    def has_common_numbers(self) -> bool:
        """Return whether anything that was measured can be compared, beside the counts of troubles."""
        return any(one.group != "trouble" for one in self.numbers)
