"""Trains with a real verl as a user would: examples/verl_cpu on a Ray cluster of its own."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from otel_rl import vocabulary as v
from otel_rl.journal.read import Run, open_run
from tests.programs.launch import ROOT, environment

SCRIPT = ROOT / "examples" / "verl_cpu" / "run.sh"
UNDER_OTEL_RL = (sys.executable, "-m", "otel_rl", "run", "--")


def _modes() -> dict[str, tuple[str, ...]]:
    """Return the settings of each of verl's trainers, beyond those of the example, as the page on verl shows them."""
    page = (ROOT / "docs" / "verl.md").read_text("utf-8").replace("\\\n", " ")
    commands = [shlex.split(line) for line in page.splitlines() if line.startswith("train ")]
    return {name: tuple(settings) for _, name, *settings in commands}


MODES = _modes()
TIMED = (
    "timing_", "perf/mfu", "perf/throughput", "perf/time_per_step", "actor/perf/cpu_memory_used_gb",
    "critic/perf/cpu_memory_used_gb",
)  # fmt: skip
"""How the names of verl's metrics begin that measure this machine."""


@dataclass
class Trained:
    """A training that has ended."""

    directory: Path
    code: int
    output: str

    @property
    def root(self) -> Path:
        """Where otel_rl recorded, if it did."""
        return self.directory / "runs"

    def metrics(self) -> list[dict[str, Any]]:
        """Return what verl logged of each step, without what is measured."""
        logged = map(json.loads, (self.directory / "metrics.jsonl").read_text("utf-8").splitlines())
        return [{key: value for key, value in row["data"].items() if not key.startswith(TIMED)} for row in logged]

    def recorded(self) -> list[Run]:
        """Return the runs, and what processes left that are in none."""
        folders = [path for path in self.root.iterdir() if path.name != ".pending"]
        pending = self.root / ".pending"
        return [open_run(path) for path in sorted([*folders, *(pending.iterdir() if pending.exists() else ())])]

    def stalls(self) -> list[str]:
        """Return what was told of stalls."""
        return [log.body for run in self.recorded() for log in run.logs(v.STALL)]

    def stages(self) -> Counter[str]:
        """Count the finished spans of all runs by name."""
        return Counter(span.name for run in self.recorded() for span in run.spans())


def train(directory: Path, *settings: str, under: tuple[str, ...] = (), **changes: str) -> Trained:
    """Train two steps; ``under`` runs verl, ``settings`` are its own, ``changes`` the environment's."""
    command = [*under, str(SCRIPT), str(directory), *settings]
    changes = {"PYTHON": sys.executable, "RAY_ADDRESS": "local", **changes}  # no cluster that runs already
    environ = environment(directory, **changes)
    with (directory / "output").open("w+", encoding="utf-8") as output:
        process = subprocess.Popen(command, env=environ, cwd=directory, stdout=output, stderr=subprocess.STDOUT)
        try:
            code = process.wait()
        finally:
            process.terminate()  # where it hangs Ray ends its processes then
        output.seek(0)
        return Trained(directory, code, output.read())
