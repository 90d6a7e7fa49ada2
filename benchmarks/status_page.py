"""What the status page of a process costs: its threads where a stage begins or ends, and the flusher in a second.

    python benchmarks/status_page.py

CPU time of the thread, beside one reading of a clock. In a second the flusher has two cycles: 300 stages of 30
kinds end, and six are open.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

from measure import keep, make_folder, show, side_by_side

os.environ["OTEL_RL_DIR"] = make_folder()

from otel_rl.flusher.status_page import StatusPage
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.page import BEGAN, STAGE
from otel_rl.journal.write import Writer
from otel_rl.process.status import status
from otel_rl.trace.stage import Stage

CYCLES = 2
KINDS = 30
ENDED = 150
"""Stages that end in a cycle."""


def stage(number: int, began: int, ended: int = 0) -> Stage:
    """Make a stage by hand."""
    made = Stage(f"stage {number}", {"rl.mode": "train"})
    made.span_id, made.parent_id, made.began, made.ended = number + 1, number, began, ended
    return made


def seconds_of(page: StatusPage, writer: Writer) -> Callable[[int], None]:
    """Make a function that does what the flusher does for the page in so many seconds."""
    opened = [stage(number, time.monotonic_ns() - 5_000_000_000) for number in range(6)]
    now = time.monotonic_ns()
    ended = [stage(one % KINDS, now - 1_000_000, now) for one in range(ENDED)]

    def run(seconds: int) -> None:
        for number in range(CYCLES * seconds):
            page.touch(ended)
            for kind in range(KINDS):
                page.normal(f"stage {kind}", [0.001 * (number + kind)] * (ENDED // KINDS))
            page._written_ns = 0 if number % CYCLES else time.monotonic_ns()  # it is written once a second
            page.update(writer, opened)

    return run


def stores(count: int) -> None:
    """Store a stage and its begin."""
    one = stage(1, time.monotonic_ns())
    for _ in range(count):
        words = status.words
        words[STAGE] = status.codes[one.name]
        words[BEGAN] = one.began


def clocks(count: int) -> None:
    """Read a clock."""
    for _ in range(count):
        time.monotonic_ns()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    writer = Writer(Path(os.environ["OTEL_RL_DIR"]), WriterIdentity.current("benchmark", 0), 64 << 20)
    writer.append("logs", b"", 1, 1, 1)  # there is no page before the first frame
    page = StatusPage()
    page.update(writer, ())
    tables = {
        "the hot path, with a page": side_by_side({"a reading of the clock": clocks, "two stores": stores}, 100_000),
        "the flusher": side_by_side({"nothing": lambda _: None, "a busy second": seconds_of(page, writer)}, 100),
    }
    page.close()
    for title, figures in tables.items():
        show(title, figures)
    keep(options.json, tables)


if __name__ == "__main__":
    main()
