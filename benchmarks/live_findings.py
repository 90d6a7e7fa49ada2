"""How soon a problem is told while a training goes on: on the terminal, by the hook, and in the metric.

    python benchmarks/live_findings.py lr_high nan_reward clean --steps 400

Each problem of `tests/planted` trains on two ranks under `otel-rl run`. Meanwhile the report is built anew every few
seconds: the first that names the problem is when its rule holds. A problem's training is ended once it is told.
"""

from __future__ import annotations

import argparse
import json
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
import otel_rl
from otel_rl import vocabulary as v
from otel_rl.journal.frame import Signal
from otel_rl.report.build import build_report
from otel_rl.report.data.finding import Finding
from otel_rl.runs.locate import open_whole
from tests.planted.cases import MACHINE
from tests.planted.problems import BY_NAME, Problem
from tests.programs.launch import environment, launcher
from tests.sink import TAKEN, Answer, records_of, sink

LOOK_S = 4.0
CHANNELS = "terminal", "hook", "metric"


@dataclass
class Watched:
    """One training while it goes on. Times are seconds since 1970."""

    problem: Problem | None
    hook: Path
    """Where the hook writes what it gets."""
    began: float = field(default_factory=time.time)
    holds: float | None = None
    """When a report first named the problem."""
    told: dict[str, float] = field(default_factory=dict)
    """When each channel named it."""
    lines: list[str] = field(default_factory=list)
    """What the terminal told of findings."""

    def names(self, finding: Finding) -> bool:
        """Return whether a finding is what the problem must raise; of a clean training any alarm or warning."""
        if self.problem is None:
            return finding.severity != "note" and finding.rule not in MACHINE
        return finding.severity != "note" and finding.kind == self.problem.kind and self.is_named(finding.sentence)

    def is_named(self, sentence: str) -> bool:
        return self.problem is None or self.problem.is_named_by(sentence)

    def note(self, channel: str, sentence: str) -> None:
        """Note when a channel first names the problem."""
        if self.problem is not None and self.is_named(sentence):
            self.told.setdefault(channel, time.time())

    def look(self, run: Path) -> None:
        """Build the report if the problem is not named yet; read what the hook got."""
        if self.holds is None:
            found = build_report(open_whole(run), time.time_ns()).findings
            if any(map(self.names, (*found.time, *found.learn, *found.health))):
                self.holds = time.time()

    def hear(self, process: subprocess.Popen[str]) -> None:
        """Take the lines of the terminal."""
        assert process.stdout
        for line in process.stdout:
            if line.lower().startswith(("learn", "time", "health", "otel-rl", "otel_rl")):
                self.lines.append(f"{time.time() - self.began:6.1f} s  {line.rstrip()}")
                if line.startswith(("otel-rl: time", "otel-rl: learn", "otel-rl: health")):
                    self.note("terminal", line)

    def read_hook(self, is_over: threading.Event) -> None:
        """Take what the hook gets."""
        while not is_over.wait(0.2):
            for line in self.hook.read_text().splitlines() if self.hook.exists() else ():
                with suppress(ValueError):  # half a line
                    self.note("hook", json.loads(line)["sentence"])

    def receive(self, kind: Signal, payload: bytes) -> Answer:
        """Take the metrics that arrive at the endpoint."""
        if kind == "metrics":
            for metric in records_of(kind, payload):
                for point in metric.gauge.data_points if metric.name == v.FINDING_ACTIVE else ():
                    labels = {pair.key: pair.value.string_value for pair in point.attributes}
                    if point.as_double == 1:
                        self.note("metric", labels[v.FINDING_SENTENCE])
        return TAKEN


def watch(name: str, options: argparse.Namespace, root: Path) -> Watched:
    """Train with a problem, and return when it held and when it was told."""
    run, watched = root / name, Watched(BY_NAME.get(name), root / f"{name}.hook")
    recording = [sys.executable, "-m", "otel_rl", "run", f"--dir={root}", f"--run-id={name}", "--", sys.executable]
    training = [*launcher(2), "-m", "tests.planted.train", name, f"--steps={options.steps}", f"--seed={options.seed}"]
    with sink("http") as server:
        server.answer = watched.receive
        process = subprocess.Popen(
            [*recording, *training], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
            env={
                **environment(root), "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "OTEL_EXPORTER_OTLP_ENDPOINT": server.endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
                "OTEL_RL_ON_FINDING": f"tee -a {watched.hook}", "OTEL_RL_ON_FINDING_FROM": "warning",
            },
        )  # fmt: skip
        is_over = threading.Event()
        threading.Thread(target=watched.hear, args=(process,), daemon=True).start()
        threading.Thread(target=watched.read_hook, args=(is_over,), daemon=True).start()
        while (
            process.poll() is None and len(watched.told) < len(CHANNELS) and time.time() - watched.began < options.limit
        ):
            time.sleep(LOOK_S)
            with suppress(Exception):  # there is no report yet
                watched.look(run)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()
        is_over.set()
    return watched


def step_ends(run: Path) -> list[float]:
    """Return when steps of rank 0 ended."""
    rows = otel_rl.read(run).query("SELECT epoch_ns(end_time) FROM steps WHERE rank = 0 ORDER BY 1").fetchall()
    return [end_ns / 1e9 for (end_ns,) in rows]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="+", choices=["clean", *BY_NAME])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=240.0, help="seconds of a training")
    parser.add_argument("--dir", type=Path, help="where to keep the runs")
    options = parser.parse_args()
    root = options.dir or Path(tempfile.mkdtemp(prefix="otel_rl_live_"))
    root.mkdir(parents=True, exist_ok=True)
    for name in options.names:
        watched = watch(name, options, root)
        ends = step_ends(root / name)

        def at(when: float | None, began: float = watched.began, ends: list[float] = ends) -> tuple[float, int]:
            """Return a time as seconds since the start, and steps until then."""
            return (when or began) - began, sum(end <= (when or began) for end in ends)

        held_s, held_step = at(watched.holds)
        print(f"{name:16} {len(ends)} steps; its rule held after {held_s:.1f} s, step {held_step}", flush=True)
        for channel in CHANNELS:
            told_s, told_step = at(watched.told.get(channel))
            later = f"{told_s - held_s:.1f} s, {told_step - held_step} steps later" if told_s else "not told"
            print(f"    {channel:10} {later}", flush=True)
        for line in watched.lines:
            print(f"    {line[:200]}", flush=True)


if __name__ == "__main__":
    main()
