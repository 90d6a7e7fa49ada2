"""How soon a problem is told while a training goes on: on the terminal, by the hook, as a metric, by the alert.

    python benchmarks/live_findings.py lr_high nan_reward clean --steps 400
    python benchmarks/live_findings.py verl_nan_loss verl_slow_reward verl_late_samples verl_clean --steps 60

Each problem of `tests/planted` trains on two ranks under `otel-rl run`, each of verl (`tests/verl/planted`) as in
`examples/verl_cpu`, in the environment that `scripts/environment verl` makes. They send to a Collector and a Prometheus
that `scripts/backends` built, which has the rules of `collector/rules`. Meanwhile the report is built anew every few
seconds: the first that names the problem is when its rule holds. A problem's training is ended once every channel has
told it.
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
from otel_rl.report.build import build_report
from otel_rl.report.data.finding import Finding
from otel_rl.runs.locate import open_whole
from tests.backends import ROOT, Prometheus, collector, get, prometheus
from tests.planted.cases import MACHINE
from tests.planted.problems import BY_NAME, Problem
from tests.programs.launch import environment, launcher

LOOK_S = 4.0
ASK_S = 1.0
CHANNELS = "terminal", "hook", "metric", "alert"
OF_VERL = {
    one.name: one
    for one in (
        Problem("verl_nan_loss", "the loss of rank 1 is NaN in step 3", "learn", (r"NaN",)),
        Problem("verl_slow_reward", "from step 3 on each reward takes 0.4 s longer", "time", (r"reward",)),
        Problem("verl_late_samples", "samples arrive 1.5 s after their trajectories", "time", (r"samples", r"after")),
    )
}
PROBLEMS = BY_NAME | OF_VERL
VERL = str(ROOT / ".venv-verl" / "bin" / "python")


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
    alerts: set[str] = field(default_factory=set)
    """What fired."""

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

    def ask(self, store: Prometheus, is_over: threading.Event) -> None:
        """Ask for the metric and for the alert."""
        while not is_over.wait(ASK_S):
            for series in store.query("rl_finding_active == 1"):
                self.note("metric", series["metric"]["rl_finding_sentence"])
            answer = get(f"{store.url}/api/v1/alerts", timeout_s=10)
            for alert in answer["data"]["alerts"] if answer else ():
                if alert["labels"]["alertname"] == "OtelRlFinding" and alert["state"] == "firing":
                    self.note("alert", alert["annotations"]["description"])
                    self.alerts.add(alert["annotations"]["description"])


def training(name: str, options: argparse.Namespace, root: Path) -> tuple[str, list[str], dict[str, str]]:
    """Return the interpreter and the command that train with a problem, and the variables that they need."""
    if name.startswith("verl_"):
        script = str(ROOT / "examples" / "verl_cpu" / "run.sh")
        settings = [f"trainer.total_training_steps={options.steps}", "trainer.save_freq=-1", "trainer.test_freq=-1"]
        return VERL, [script, str(root / f"{name}.files"), "trainer.total_epochs=1000", *settings], {
            "PYTHON": VERL, "RAY_ADDRESS": "local", "VERL_USE_EXTERNAL_MODULES": "verl_faults",
            "FAULT": name.removeprefix("verl_").replace("clean", ""),
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests" / "verl" / "planted"))),
        }  # fmt: skip
    own = ["-m", "tests.planted.train", name, f"--steps={options.steps}", f"--seed={options.seed}"]
    return sys.executable, [sys.executable, *launcher(2), *own], {}


def watch(name: str, options: argparse.Namespace, root: Path) -> Watched:
    """Train with a problem, and return when it held and when it was told."""
    run, watched = root / name, Watched(PROBLEMS.get(name), root / f"{name}.hook")
    python, command, variables = training(name, options, root)
    recording = [python, "-m", "otel_rl", "run", f"--dir={root}", f"--run-id={name}", "--"]
    programs = root / f"{name}.programs"
    with prometheus(programs) as store, collector(programs, OTEL_RL_PROMETHEUS=store.url) as found:
        process = subprocess.Popen(
            [*recording, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
            env={
                **environment(root), "PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}",
                "OTEL_EXPORTER_OTLP_ENDPOINT": found.http, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
                "OTEL_RL_ON_FINDING": f"tee -a {watched.hook}", "OTEL_RL_ON_FINDING_FROM": "warning", **variables,
            },
        )  # fmt: skip
        is_over = threading.Event()
        for target, arguments in (
            (watched.hear, (process,)), (watched.read_hook, (is_over,)), (watched.ask, (store, is_over)),
        ):  # fmt: skip
            threading.Thread(target=target, args=arguments, daemon=True).start()
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
    parser.add_argument("names", nargs="+", choices=["clean", "verl_clean", *PROBLEMS])
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
        for line in (*watched.lines, *(f"alert: {one}" for one in sorted(watched.alerts))):
            print(f"    {line[:200]}", flush=True)


if __name__ == "__main__":
    main()
