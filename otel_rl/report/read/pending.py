"""Processes that began with a run and are in none yet: a rank that hangs before its process group is made."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from otel_rl.journal.read import JournalNotFound, Run, open_run
from otel_rl.process.identity import is_made_of
from otel_rl.report.data.open_stages import Pending
from otel_rl.report.data.report import Attempt
from otel_rl.report.read.attributes import KEYS
from otel_rl.report.read.collect import collect
from otel_rl.report.sections.health import open_rows
from otel_rl.runs.locate import PENDING, recorded_below

START_NS: Final = 60_000_000_000
"""The ranks of a launcher begin within that, in any order: one may be there before the run is."""


def pending(run: Run, attempts: Iterable[Attempt], now_ns: int) -> list[Pending]:
    """Find the processes that wait beside a run for the name of theirs.

    They were told no name, so that their run has none but the one that rank 0 made of its attempt. Of that run they
    may be where they are on a host of it and began while it was recorded; more nobody knows.
    """
    path = Path(os.path.abspath(run.path))  # of "." neither the name nor the parent would be known
    times = [(one.begin_ns - START_NS, one.end_ns) for one in attempts if is_made_of(path.name, one.id)]
    hosts = _hosts(run)
    return [
        Pending(path=str(other.path), open_stages=open_rows(other.open_stages(), now_ns, _longest_ns(other)))
        for other in (_runs(path.parent / PENDING) if times else ())
        if hosts & _hosts(other)
        and any(begin <= one.identity.created_ns <= end for one in other.journals for begin, end in times)
    ]


def _runs(root: Path) -> Iterator[Run]:
    for path in recorded_below(root):
        try:
            yield open_run(path)
        except JournalNotFound:  # it has become known since it was listed
            continue


def _longest_ns(run: Run) -> dict[str, int]:
    """Find the longest call of each stage that ended, as it is held until the run is known."""
    return collect(run.spans(KEYS)).longest_ns


def _hosts(run: Run) -> set[str]:
    """What the hosts of a run are known by: their boot, or their name where that is not told."""
    return {journal.identity.boot_id or journal.identity.host for journal in run.journals} - {""}
