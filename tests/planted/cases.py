"""Trains each problem under recording, and says what its report finds."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from otel_rl.report.build import build_report
from otel_rl.report.data.finding import Finding
from otel_rl.runs.locate import open_whole
from tests.planted.problems import BY_NAME, CLEAN, PROBLEMS, Problem
from tests.programs.launch import environment, launcher

MACHINE = frozenset(("slower_since", "starved_rank"))
"""Rules of TIME that find other programs on the machine, too."""


@dataclass(frozen=True, slots=True)
class Case:
    """One training to do and to judge."""

    name: str
    seed: int = 0
    ranks: int = 1
    problem: Problem | None = None
    """None: it must raise no alarm and no warning."""
    options: Sequence[str] = ()

    @property
    def run_id(self) -> str:
        return f"{self.name}-{self.seed}"

    @property
    def command(self) -> list[str]:
        """What ``python`` runs, with its arguments."""
        return [*launcher(self.ranks), "-m", "tests.planted.train", *self.options, f"--seed={self.seed}"]


def cases(names: Sequence[str] = (), seeds: Sequence[int] = (0,)) -> list[Case]:
    """Return the named ones, or all; ``clean`` names all clean ones, which have seeds of their own."""
    asked = [BY_NAME[name] for name in names if name != "clean"] if names else PROBLEMS
    planted = [Case(one.name, seed, one.ranks, one, [one.name]) for seed in seeds for one in asked]
    is_clean_asked = not names or "clean" in names
    return planted + [Case(one.name, one.seed, one.ranks, options=one.options) for one in CLEAN if is_clean_asked]


def record(case: Case, root: Path) -> str:
    """Train, and return what it printed; fail if the training does."""
    recording = ["-m", "otel_rl", "run", f"--dir={root}", f"--run-id={case.run_id}", "--quiet", "--", sys.executable]
    done = subprocess.run(
        [sys.executable, *recording, *case.command],
        env={**environment(root), "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{case.run_id} ended with {done.returncode}\n{done.stdout[-8000:]}"
    return done.stdout


@dataclass(frozen=True, slots=True)
class Judged:
    """What the report of one training finds."""

    case: Case
    findings: Sequence[Finding]
    """Of all kinds; of each the worst first."""
    error: str = ""
    """Why there is no report."""

    @property
    def first(self) -> Finding | None:
        """The first finding of the kind that has to name the problem, but for what another program may have caused."""
        problem = self.case.problem
        told = [one for one in self.findings if problem and one.kind == problem.kind]
        return next((one for one in told if one.rule not in MACHINE or problem.is_named_by(one.sentence)), None)

    @property
    def raised(self) -> list[Finding]:
        """Alarms and warnings; with a problem, only those of the other kinds."""
        problem = self.case.problem
        return [one for one in self.findings if one.severity != "note" and (not problem or one.kind != problem.kind)]

    @property
    def is_right(self) -> bool:
        """Whether the problem is named where it has to be, or a clean training raises nothing."""
        problem, first = self.case.problem, self.first
        if problem is None:
            return not self.raised and not self.error
        return first is not None and first.severity != "note" and problem.is_named_by(first.sentence)


def judge(case: Case, root: Path) -> Judged:
    """Build the report of what was recorded."""
    found = build_report(open_whole(root / case.run_id), time.time_ns()).findings
    return Judged(case, [*found.time, *found.learn, *found.health])


def rows(judged: Sequence[Judged]) -> Iterator[list[str]]:
    """Return what a table of them shows: run, kind, right or wrong, first sentence, what else was raised."""
    for one in judged:
        kind = one.case.problem.kind if one.case.problem else "clean"
        first = f"{one.first.severity}: {one.first.sentence}" if one.first else one.error
        others = "; ".join(f"{other.kind} {other.severity}: {other.sentence}" for other in one.raised)
        yield [one.case.run_id, kind, "right" if one.is_right else "WRONG", first, others]
