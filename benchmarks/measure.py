"""Measure functions side by side: interleaved rounds in one process, median and spread, as ratios."""

from __future__ import annotations

import atexit
import gc
import json
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Figure:
    """One candidate: us of CPU time per operation, and how many times the reference's cost that is."""

    name: str
    median_us: float
    low_us: float
    high_us: float
    ratio: float


def make_folder() -> str:
    """Make a folder that is removed when the program ends: behind otel_rl's last writes, if made before its import."""
    folder = tempfile.mkdtemp(prefix="otel_rl_benchmark_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def side_by_side(candidates: dict[str, Callable[[int], object]], count: int, rounds: int = 21) -> list[Figure]:
    """Run every candidate once a round; the first is the reference of the ratios.

    Args:
        candidates: name to a function that does its operation that many times.
        count: operations of a round.
        rounds: how many rounds; the quartiles are the spread.
    """
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for function in candidates.values():
        function(max(count // 10, 1))
    for _ in range(rounds):
        for name, function in candidates.items():
            gc.collect()
            began = time.thread_time_ns()
            function(count)
            times[name].append((time.thread_time_ns() - began) / count / 1e3)
    figures = []
    reference = statistics.median(next(iter(times.values())))
    for name, values in times.items():
        low, median, high = statistics.quantiles(values, n=4)
        figures.append(Figure(name, median, low, high, median / reference))
    return figures


def show(title: str, figures: list[Figure]) -> None:
    """Print a table."""
    print(f"\n{title}")
    for row in figures:
        spread = f"{row.low_us:.2f}-{row.high_us:.2f}"
        print(f"  {row.name:44s} {row.median_us:8.2f} us  ({spread:>13s})  x {row.ratio:.2f}")


def keep(path: Path | None, tables: dict[str, list[Figure]]) -> None:
    """Write the figures and the machine they come from."""
    if path is None:
        return
    machine = {"python": sys.version.split()[0], "machine": platform.machine(), "system": platform.system()}
    document = {"machine": machine, **{title: [asdict(row) for row in rows] for title, rows in tables.items()}}
    path.write_text(json.dumps(document, indent=2) + "\n")
