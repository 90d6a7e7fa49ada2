"""What `otel-rl run` adds to the start of a Python, which programs around a training start by the hundred.

python benchmarks/start.py
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from measure import make_folder

from otel_rl.cli.commands.run import child_environment

KEYS = ("start_ms", "cpu_ms", "rss_mb")
PEAK = "print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])"
"""The peak of a process's own memory, kB; that which `wait4` returns may be its parent's."""


def main() -> None:
    """Print medians and quartiles of the time to start and end, the CPU time, and the peak of resident memory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20, help="how often each of them is started")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    recorded = child_environment(plain, Path(make_folder()))
    ways = {
        "python -c pass": (plain, "pass"),
        "the same under otel-rl run": (recorded, "pass"),
        "python -c 'import openai'": (plain, "import openai"),
        "the same under otel-rl run, which starts": (recorded, "import openai"),
    }
    taken: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, (environ, code) in ways.items():
            taken[name].append(start(environ, code))
    figures = {name: summary(rows) for name, rows in taken.items()}
    for name, row in figures.items():
        print(f"{name:44s}", *(f"{key} {row[key][1]:7.1f} ({row[key][0]:.1f}-{row[key][2]:.1f})" for key in KEYS))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


def start(environ: Mapping[str, str], code: str) -> tuple[float, float, float]:
    """Run Python to its end; return wall and CPU time in ms and the peak of its resident memory in MB."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", f"{code}; {PEAK}"], env=environ, stdout=subprocess.PIPE)
    peak_kb, _ = process.stdout.read(), process.stdout.close()
    _, status, used = os.wait4(process.pid, 0)
    took = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return took * 1e3, (used.ru_utime + used.ru_stime) * 1e3, int(peak_kb) / 1024


def summary(rows: list[tuple[float, float, float]]) -> dict[str, list[float]]:
    """Return the quartiles of each figure."""
    return {key: statistics.quantiles(values, n=4) for key, values in zip(KEYS, zip(*rows, strict=True), strict=True)}


if __name__ == "__main__":
    main()
