"""`otel-rl demo`: a real run in half a minute."""

from __future__ import annotations

import os
import shlex
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Final

import typer

from otel_rl.cli.child import run_child
from otel_rl.cli.commands.run import recorded_since
from otel_rl.cli.conclusion import Conclusion
from otel_rl.cli.console import FAILED, NOT_FOUND, Directory, leave, settings_to_train, stderr
from otel_rl.config import LAUNCH
from otel_rl.process.identity import new_launch
from otel_rl.runs.format import plural, printable

NEEDED: Final = ("torch", "trl", "transformers", "datasets", "accelerate")


def demo(
    directory: Directory = None,
    ranks: Annotated[int, typer.Option("--ranks", min=1, max=8, help="Processes that train together, on CPUs.")] = 2,
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="Steps to train. Without it: 240.")] = None,
) -> None:
    """Train a tiny language model with TRL's GRPOTrainer on two CPU ranks, record it, and print its report.

    Needs torch, trl, transformers, datasets and accelerate; no GPU and no network. On two cores it takes about
    half a minute.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        leave(f"the demo needs {', '.join(missing)}: pip install {' '.join(missing)}", FAILED)
    config = settings_to_train()
    root = (directory or config.directory).absolute()
    console = stderr()
    cpus = plural(ranks, "CPU rank")
    console.print(f"Training a tiny model with TRL's GRPO on {cpus}: about half a minute.")
    launch = new_launch(os.environ)
    environ = {"OMP_NUM_THREADS": "1", **safe_path(), **os.environ, "OTEL_RL_DIR": str(root), LAUNCH: launch}
    started_ns = time.time_ns()
    # made here, because a rank that a signal ends removes nothing; one that outlives its launcher may still write
    with TemporaryDirectory(prefix="otel_rl_demo_", ignore_cleanup_errors=True) as scratch:
        code = run_child([*demo_command(ranks, steps), f"--workdir={scratch}"], environ)
    runs = recorded_since(root, started_ns, launch)
    found = Conclusion(quiet=False)
    found.read(lambda: runs)
    found.print()
    if code:
        leave(f"the demo's training ended with exit code {code}", FAILED)
    if not runs:
        raise typer.Exit(NOT_FOUND)
    name = shlex.quote(printable(str(runs[0].path)))
    more = f"otel-rl report {name} --json, or otel-rl export {name} --output run.jsonl"
    console.print(f"Next: otel-rl report {name} --html run.html, {more}", soft_wrap=True)
    console.print(f"Look at it in a browser: otel-rl view {name}", soft_wrap=True)


def demo_command(ranks: int, steps: int | None) -> list[str]:
    """Make the command that starts the demo's ranks on this machine."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    options = [] if steps is None else [f"--steps={steps}"]
    return [*launcher, "-m", "otel_rl.demo.train", *options]


def safe_path() -> dict[str, str]:
    """Keep a `datasets.py` in the working directory from being imported, unless otel_rl lies there too."""
    lies_here = sys.path[0] == str(Path(__file__).parents[3])
    return {} if lies_here else {"PYTHONSAFEPATH": "1"}
