"""What a call costs where it really happens: in a loop, and right after matrix products, when the caches are cold.

python benchmarks/cold.py
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns

import torch

ROUNDS = 300


def main() -> None:
    """Print medians in us, of wall time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    matrix = torch.randn(512, 512)
    statm = os.open("/proc/self/statm", os.O_RDONLY)
    calls: dict[str, Callable[[], object]] = {
        "nothing": lambda: None,
        "getppid": os.getppid,
        "monotonic clock": time.monotonic_ns,
        "pread of statm": lambda: os.pread(statm, 64, 0),
        "getrusage": lambda: resource.getrusage(resource.RUSAGE_SELF),
        "sum of a small tensor": lambda: float(torch.ones(4).sum()),
    }
    figures = {name: {"loop_us": median(call), "cold_us": median(call, matrix)} for name, call in calls.items()}
    for name, row in figures.items():
        print(f"{name:24s} loop {row['loop_us']:8.2f} us   cold {row['cold_us']:8.2f} us")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


def median(call: Callable[[], object], matrix: torch.Tensor | None = None) -> float:
    """Time a call, each time after three products of the matrix with itself, if there is one."""
    taken = []
    for _ in range(ROUNDS):
        if matrix is not None:
            for _ in range(3):
                (matrix @ matrix).relu_().sum()
        began = perf_counter_ns()
        call()
        taken.append((perf_counter_ns() - began) / 1e3)
    return statistics.median(taken)


if __name__ == "__main__":
    main()
