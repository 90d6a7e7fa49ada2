"""What the flusher spends on telling where the time of a step went: goodput, activity and bubbles.

    python benchmarks/step_time.py

CPU time of the flusher's thread for one step, as its records would come: sixteen micro-batches of forward and backward
inside an update, and the stages around it; with and without collectives. ``nothing`` is the loop over the records.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from measure import keep, show, side_by_side

from otel_rl import vocabulary as v
from otel_rl.comm.collectives import Collective
from otel_rl.flusher.step_time import StepTime
from otel_rl.metrics.record import Fold
from otel_rl.process.state import Trace
from otel_rl.trace.stage import Stage

MS = 1_000_000


def ended(name: str, begin_ms: int, end_ms: int, attributes: dict | None = None) -> Stage:
    """Make a stage that is over."""
    stage = Stage(name, attributes, coarse=True)
    stage.parent_id = 1
    stage.began, stage.ended = begin_ms * MS, end_ms * MS
    return stage


def step(micro_batches: int, collectives: int) -> list[Stage | Collective]:
    """Make the records of one step in the order of their end."""
    records: list[Stage | Collective] = [
        ended(v.IDLE, 0, 5, {v.IDLE_REASON: "data"}),
        ended(v.SAMPLE, 5, 300),
        ended(v.REWARD, 300, 350),
        ended(v.LOGPROB, 350, 400),
    ]
    for number in range(micro_batches):
        at = 400 + 30 * number
        records.append(ended(v.FORWARD, at, at + 10))
        backward = ended(v.BACKWARD, at + 10, at + 30)
        for place in range(collectives):
            inside = Collective("all_reduce", 0)
            inside.stage = backward
            inside.began = (at + 10) * MS + place * 1_000
            inside.ended = inside.began + 500
            records.append(inside)
        records.append(backward)
    end = 400 + 30 * micro_batches
    records += [
        ended(v.OPTIMIZER, end, end + 10),
        ended(v.TRAIN, 400, end + 10),
        ended(v.CHECKPOINT, end + 10, end + 50),
        ended("rl.rank 0", 0, end + 60, {v.ITERATION: 1}),
    ]
    return records


def run(records: list[Stage | Collective], *, is_told: bool) -> Callable[[int], None]:
    """Make a function that hands the records over many times, each time as those of another step."""

    def handed(count: int) -> None:
        fold = Fold(0)
        times = StepTime(fold)
        for number in range(count):
            trace = Trace(number, 0, step=f"train {number}")
            for record in records:
                (record if type(record) is Stage else record.stage).trace = trace
            if is_told:
                times.add(iter(records))
            fold.drain(number)

    return handed


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--count", type=int, default=300)
    options = parser.parse_args()
    tables = {}
    for title, records in {
        "one stage": step(0, 0)[1:2] + step(0, 0)[-1:],
        "8 stages": step(0, 0),
        "40 stages": step(16, 0),
        "40 stages, 208 collectives": step(16, 13),
    }.items():
        tables[title] = side_by_side(
            {"nothing": run(records, is_told=False), "told": run(records, is_told=True)}, options.count
        )
    for title, figures in tables.items():
        show(title, figures)
    keep(options.json, tables)


if __name__ == "__main__":
    main()
