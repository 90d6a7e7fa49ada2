"""What recording costs a real run of verl: whole trainings with otel_rl and without, in turn.

    python benchmarks/overhead_verl.py --pairs 3 --steps 20

It needs the environment of ``scripts/environment verl``, and trains ``examples/verl_cpu`` on two ranks. A step's time
is verl's own ``timing_s/step`` without ``timing_s/gen``, in which it sleeps for two seconds. The first four steps of a
training are left out. Printed are the median of each training, their means, the cost in ms and as a part of the whole
step, and how many spans and bytes a step leaves.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from otel_rl.journal.read import open_run

SCRIPT = Path(__file__).parents[1] / "examples" / "verl_cpu" / "run.sh"
WARM_UP = 4


def train(directory: Path, steps: int, *, is_watched: bool) -> tuple[list[float], list[float]]:
    """Return the time of each step without the poll, and the whole time of each, s."""
    under = (sys.executable, "-m", "otel_rl", "run", "--") if is_watched else ()
    settings = f"trainer.total_training_steps={steps}", "trainer.save_freq=-1", "trainer.test_freq=-1"
    environ = {**os.environ, "PYTHON": sys.executable, "RAY_ADDRESS": "local", "OTEL_RL_DIR": str(directory / "runs")}
    command = [*under, str(SCRIPT), str(directory), *settings]
    subprocess.run(command, env=environ, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    lines = (directory / "metrics.jsonl").read_text("utf-8").splitlines()[WARM_UP:]
    logged = [json.loads(line)["data"] for line in lines]
    whole = [float(data["timing_s/step"]) for data in logged]
    return [time - float(data["timing_s/gen"]) for time, data in zip(whole, logged, strict=True)], whole


def main() -> None:
    """Train in turn, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    medians: dict[bool, list[float]] = {False: [], True: []}
    wholes: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(options.pairs):
            for is_watched in (False, True) if pair % 2 == 0 else (True, False):
                directory = Path(folder, f"{pair}{is_watched}")
                times, whole = train(directory, options.steps, is_watched=is_watched)
                medians[is_watched].append(statistics.median(times))
                wholes += whole
                print(
                    f"{'with' if is_watched else 'without'} otel_rl: {statistics.median(times) * 1e3:.1f} ms",
                    flush=True,
                )
                if is_watched:
                    print_size(next((directory / "runs").glob("2*")), options.steps)
        off, on = (statistics.mean(medians[is_watched]) for is_watched in (False, True))
        step_s = statistics.median(wholes)
        print(
            f"cost {(on - off) * 1e3:.1f} ms a step: {(on - off) / off:.2%} of {off * 1e3:.0f} ms, "
            f"{(on - off) / step_s:.2%} of the whole step of {step_s:.2f} s"
        )


def print_size(run: Path, steps: int) -> None:
    """Print what a step leaves; the set-up's part is in it."""
    size = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    spans = sum(1 for _ in open_run(run).spans())
    print(f"    {spans / steps:.0f} spans and {size / steps / 1e3:.0f} kB a step, the set-up's with them")


if __name__ == "__main__":
    main()
