"""What all ranks handled together: a sample that several of them share counts once."""

from __future__ import annotations

from collections.abc import Iterable

from otel_rl.pieces import UNKNOWN
from otel_rl.report.collect import StepKey, StepRecord
from otel_rl.report.pieces import Work


def work_of_all(records: Iterable[StepRecord]) -> Work:
    """Add up over ranks and steps; of the ranks of a data-parallel group that share their samples one counts.

    Of each number it is the one that counted most in the step: with a pipeline only some of them may see the batch.
    """
    shared: dict[tuple[StepKey, str, int, int], Work] = {}
    for record in records:
        own = record.rank.rank if record.samples == UNKNOWN else UNKNOWN
        shared.setdefault((record.key, record.rank.role, record.samples, own), Work()).most(record.work)
    total = Work()
    for work in shared.values():
        total.add(work)
    return total
