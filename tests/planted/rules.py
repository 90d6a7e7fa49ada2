"""Which rules are planted into which training, by hand with several seeds: ``python -m tests.planted.rules``.

Prints a table of rules by seeds, and what the reports of clean trainings of other shapes find::

    python -m tests.planted.rules --seeds 0 1 2
    python -m tests.planted.rules divergence clean --dir /tmp/runs
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NoReturn, TextIO

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.report.build import build_report
from otel_rl.report.data.finding import Finding
from otel_rl.runs.locate import open_whole
from tests.planted.cases import MACHINE
from tests.programs.launch import ROOT, environment

OWN, DRIVER, TRL = "tests.planted.own_loop", "tests.planted.driver_loop", "tests.planted.train"
SHAPE = ROOT / "tests" / "roll" / "shape"


@dataclass(frozen=True)
class Run:
    """One training."""

    name: str
    """Of the rule that must tell it, or of a clean one."""
    module: str = OWN
    """Empty: ROLL's pipeline in the shape that ``tests/roll`` has."""
    options: Sequence[str] = ()
    fed_by: str = "a plain loop"
    """What feeds the rule here."""

    def command(self, seed: int) -> list[str]:
        """Return what Python runs."""
        if not self.module:
            return ["-W", "ignore", str(SHAPE / "train.py"), *self.options]
        return ["-m", self.module, *(self.options or [self.name]), f"--seed={seed}"]


ROLL, BOARD, AHEAD = "ROLL's shape on Ray", "NVML that stands in", "a driver whose engine sleeps"
PLANTED = (
    *map(Run, (
        "divergence", "reward_constant", "policy_unchanged", "rollout_drifts", "rollout_apart", "reward_noisy",
        "cut_rises", "requests_worse", "engine_full", "tokens_jump",
    )),
    Run("policy_loss_positive", TRL, fed_by="TRL"),
    Run("answers_far_below_limit", TRL, fed_by="TRL"),
    Run("answers_at_limit", "", ["rlvr", json.dumps({"max_steps": 6})], ROLL),
    Run("lag_grows", "", ["rlvr", json.dumps({"max_steps": 18, "async_generation_ratio": 20})], ROLL),
    Run("training_starves", DRIVER, fed_by=AHEAD),
    Run("rollouts_starve", DRIVER, fed_by=AHEAD),
    *(Run(name, fed_by=BOARD) for name in ("memory_fragmented", "device_errors", "device_throttled", "low_gpu_use")),
)  # fmt: skip
NEW = frozenset(one.name for one in PLANTED)


def own(*changes: str) -> list[str]:
    return ["clean", "--set", *changes]


CLEAN = (
    Run("own", options=["clean"]),
    Run("own-120-steps", options=own("steps=120")),
    Run("own-20-steps", options=own("steps=20")),
    Run("own-two-updates", options=own("updates=2")),
    Run("own-large-groups", options=own("group=8", "prompts=4")),
    Run("own-slow", options=own("rate=0.0005", "steps=120")),
    Run("own-one-step-off", options=own("engine_lag=1")),
    Run("own-strong-kl", options=own("beta=0.2")),
    Run("own-long", options=own("limit=24")),
    Run("own-board", options=["device"], fed_by=BOARD),
    Run("driver", DRIVER, ["clean"], AHEAD),
    Run("trl-grpo", TRL, ["clean"], "TRL"),
    Run("trl-rloo", TRL, ["clean", "--trainer=rloo"], "TRL"),
    Run("trl-two-updates", TRL, ["clean", "--iterations=2"], "TRL"),
    Run("roll", "", ["rlvr", json.dumps({"max_steps": 6, "adv_estimator": "gae", "max_new_tokens": 8})], ROLL),
)


def record(run: Run, seed: int, root: Path) -> Path:
    """Train under recording, unless that was done; return the folder of the run."""
    run_id = f"{run.name}-{seed}"
    if (root / run_id).is_dir():
        return root / run_id
    if run.module in (OWN, DRIVER):
        fork(run, seed, {"OTEL_RL_DIR": str(root), "OTEL_RL_RUN_ID": run_id})
    else:
        recording = ["-m", "otel_rl", "run", f"--dir={root}", f"--run-id={run_id}", "--quiet", "--"]
        done = subprocess.run(
            [sys.executable, *recording, sys.executable, *run.command(seed)],
            env={
                **environment(root),
                "OTEL_RL_DIR": str(root),
                "OTEL_RL_RUN_ID": run_id,
                "OTEL_RL_SIDECAR": "false",
                "RAY_AUTH_MODE": "disabled",
                "PYTHONPATH": os.pathsep.join([*([] if run.module else [str(SHAPE)]), str(ROOT)]),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{run_id} ended with {done.returncode}\n{done.stdout[-4000:]}")
    return root / run_id


def fork(run: Run, seed: int, environ: dict[str, str]) -> None:
    """Train in a child of this process, which has imported torch: that takes longer than such a training."""
    train = import_module(run.module)
    with tempfile.TemporaryFile("w+") as output:
        if child := os.fork():
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            output.seek(0)
            if code:
                raise RuntimeError(f"{run.name}-{seed} ended with {code}\n{output.read()[-4000:]}")
            return
        train_here(train, run, seed, environ, output)


def train_here(train: ModuleType, run: Run, seed: int, environ: dict[str, str], output: TextIO) -> NoReturn:
    """Train, and end this process; what it prints goes to a file."""
    try:
        sys.stdout = sys.stderr = output
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        os.environ.update(environ, OTEL_RL_SIDECAR="false")
        os.environ["OTEL_RESOURCE_ATTRIBUTES"] = f"{v.HW_ID}=GPU-1" if run.fed_by == BOARD else ""
        sys.argv = [run.module, *run.command(seed)[2:]]
        train.main()
        otel_rl.uninstrument()
        code = 0
    except BaseException:  # noqa: BLE001 a child must not go on as its parent
        traceback.print_exc()
        code = 1
    output.flush()
    os._exit(code)


def findings(folder: Path) -> list[Finding]:
    """Return what the report finds."""
    found = build_report(open_whole(folder), time.time_ns()).findings
    return [*found.time, *found.learn, *found.health]


def told(run: Run, seed: int, root: Path) -> str:
    """Return ``told``, or what is told instead of the rule."""
    try:
        found = {one.rule: one for one in findings(record(run, seed, root))}
    except Exception as error:  # noqa: BLE001 one that fails shall not hide the others
        return f"FAILED {error!r}"
    if run.name in found:
        return "told"
    return f"NOT: {', '.join(name for name, one in found.items() if one.severity != 'note') or 'nothing'}"


def noisy(run: Run, seed: int, root: Path) -> str:
    """Return the alarms and warnings of a clean training, and the notes of the rules that are planted.

    What other programs on the machine cause is left out.
    """
    found = findings(record(run, seed, root))
    raised = [one for one in found if (one.severity != "note" or one.rule in NEW) and one.rule not in MACHINE]
    return "; ".join(f"{one.severity} {one.rule}: {one.sentence}" for one in raised) or "-"


def main() -> int:
    """Do what the command line says; return 1 if a rule is not told, or a clean training raises something."""
    parser = argparse.ArgumentParser(prog="python -m tests.planted.rules", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="of rules; clean; without it: all")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--dir", type=Path, default=Path("otel_rl_runs"), help="where to keep the runs")
    options = parser.parse_args()
    is_right = True
    head = ["rule", "fed by", *(f"seed {seed}" for seed in options.seeds)]
    print(f"| {' | '.join(head)} |\n|{' --- |' * len(head)}", flush=True)
    for run in PLANTED:
        if not options.names or run.name in options.names:
            cells = [told(run, seed, options.dir) for seed in options.seeds]
            is_right &= {"told"} == set(cells)
            print(f"| {run.name} | {run.fed_by} | {' | '.join(cells)} |", flush=True)
    print("\n| clean | raised |\n| --- | --- |")
    for run in CLEAN:
        if not options.names or "clean" in options.names or run.name in options.names:
            raised = noisy(run, options.seeds[0], options.dir)
            is_right &= raised == "-"
            print(f"| {run.name} | {raised} |", flush=True)
    return int(not is_right)


if __name__ == "__main__":
    raise SystemExit(main())
