"""How soon a problem is told while a training goes on: from when the report's rule holds to the line on the terminal.

    python benchmarks/live_findings.py lr_high nan_reward clean --steps 400

Each problem of `tests/planted` trains on two ranks under `otel-rl run`. Meanwhile the report is built anew every few
seconds: the first that names the problem is when its rule holds. A problem's training is ended once it is told.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from otel_rl.report.build import build_report
from otel_rl.report.data.finding import Finding
from otel_rl.runs.locate import open_whole
from tests.planted.cases import MACHINE
from tests.planted.problems import BY_NAME, Problem
from tests.programs.launch import environment, launcher

LOOK_S = 4.0


@dataclass
class Watched:
    """One training while it goes on."""

    problem: Problem | None
    began_s: float = field(default_factory=time.monotonic)
    holds: tuple[float, int] | None = None
    """When a report first named the problem: seconds since the start, and the last step."""
    told: tuple[float, int] | None = None
    step: int = 0
    lines: list[str] = field(default_factory=list)
    """What the terminal told of findings."""

    def names(self, finding: Finding) -> bool:
        """Return whether a finding is what the problem must raise; of a clean training any alarm or warning."""
        if self.problem is None:
            return finding.severity != "note" and finding.rule not in MACHINE
        return finding.severity != "note" and finding.kind == self.problem.kind and self.is_named(finding.sentence)

    def is_named(self, sentence: str) -> bool:
        return self.problem is None or self.problem.is_named_by(sentence)

    def look(self, run: Path) -> None:
        """Build the report, and note the step and whether the problem is named."""
        report = build_report(open_whole(run), time.time_ns())
        self.step = sum(attempt.steps for attempt in report.attempts)
        found = (*report.findings.time, *report.findings.learn, *report.findings.health)
        if self.holds is None and any(map(self.names, found)):
            self.holds = time.monotonic() - self.began_s, self.step

    def hear(self, process: subprocess.Popen[str]) -> None:
        """Take the lines of the terminal."""
        assert process.stdout
        for line in process.stdout:
            if line.lower().startswith(("learn", "time", "health", "otel-rl", "otel_rl")):
                self.lines.append(f"{time.monotonic() - self.began_s:6.1f} s  {line.rstrip()}")
                if self.told is None and self.problem is not None and self.is_named(line):
                    self.told = time.monotonic() - self.began_s, self.step


def watch(name: str, options: argparse.Namespace, root: Path) -> Watched:
    """Train with a problem, and return when it held and when it was told."""
    run = root / name
    recording = [sys.executable, "-m", "otel_rl", "run", f"--dir={root}", f"--run-id={name}", "--", sys.executable]
    training = [*launcher(2), "-m", "tests.planted.train", name, f"--steps={options.steps}", "--seed=0"]
    process = subprocess.Popen(
        [*recording, *training], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        env={**environment(root), "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
    )  # fmt: skip
    watched = Watched(BY_NAME.get(name))
    threading.Thread(target=watched.hear, args=(process,), daemon=True).start()
    while process.poll() is None and watched.told is None and time.monotonic() - watched.began_s < options.limit:
        time.sleep(LOOK_S)
        with suppress(Exception):  # there is no report yet
            watched.look(run)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    process.wait()
    return watched


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="+", choices=["clean", *BY_NAME])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--limit", type=float, default=240.0, help="seconds of a training")
    parser.add_argument("--dir", type=Path, help="where to keep the runs")
    options = parser.parse_args()
    root = options.dir or Path(tempfile.mkdtemp(prefix="otel_rl_live_"))
    for name in options.names:
        watched = watch(name, options, root)
        holds, told = watched.holds, watched.told
        later = f"{told[0] - holds[0]:.1f} s, {told[1] - holds[1]} steps later" if holds and told else ""
        print(f"{name:16} holds {holds}  told {told}  {later}  last step {watched.step}", flush=True)
        for line in watched.lines:
            print(f"    {line[:200]}", flush=True)


if __name__ == "__main__":
    main()
