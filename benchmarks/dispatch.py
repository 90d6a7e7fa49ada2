"""What the flusher does with what has ended, before it is encoded: metrics, goodput, requests, completing the spans.

    python benchmarks/dispatch.py

CPU time of the flusher's thread: for a finished span of 15 attributes, 2,500 of them a cycle, as ``shipping.py`` hands
them over; and for a step of 18 spans and 42 points, with and without 200 collectives, 17 of them a cycle.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import shipping
from measure import Figure, keep, show
from step_time import step

from otel_rl.flusher.dispatch import Dispatcher
from otel_rl.metrics.record import Fold
from otel_rl.process.state import Trace
from otel_rl.records import Point
from otel_rl.trace.stage import Stage

STEPS = 17


def spans(seed: int) -> tuple[list[Any], int]:
    """Make the records of a cycle, and say how many spans they are."""
    return shipping.stages(2_500, seed), 2_500


def steps(collectives: int) -> Callable[[int], tuple[list[Any], int]]:
    """Make a function that makes the steps of a cycle."""

    def made(seed: int) -> tuple[list[Any], int]:
        records: list[Any] = []
        for number in range(STEPS):
            trace = Trace(STEPS * seed + number, 0, step=f"train {STEPS * seed + number}")
            for record in step(5, collectives):
                stage = record if type(record) is Stage else record.stage
                stage.trace, stage.span_id = trace, id(stage)
                records.append(record)
            records += [Point(f"metric {name}", 1.0, 0) for name in range(42)]
        return records, STEPS

    return made


def measure(name: str, make: Callable[[int], tuple[list[Any], int]], cycles: int) -> Figure:
    """Hand over cycle after cycle."""
    fold = Fold(0)
    dispatcher = Dispatcher(fold)
    times = []
    for cycle in range(cycles + 5):
        records, count = make(cycle)
        began = time.thread_time_ns()
        taken = dispatcher.dispatch((), records, is_asked=False, is_all=True, is_last=False)
        times.append((time.thread_time_ns() - began) / count / 1e3)
        del taken  # encoded already
        fold.drain(cycle)
    low, median, high = statistics.quantiles(times[5:], n=4)
    return Figure(name, median, low, high, 1.0)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--cycles", type=int, default=100)
    options = parser.parse_args()
    figures = [
        measure("a span of 15 attributes", spans, options.cycles),
        measure("a step of 18 spans and 42 points", steps(0), options.cycles),
        measure("and 200 collectives", steps(40), options.cycles),
    ]
    show("taken in", figures)
    keep(options.json, {"taken in": figures})


if __name__ == "__main__":
    main()
