"""What all ranks handled together: a sample that several of them share counts once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from otel_rl.report.read.collect import StepKey, StepRecord
from otel_rl.report.read.span_attributes import WorkSums
from otel_rl.runs.spans import NOT_TOLD, UNKNOWN


def work_of_all(records: Sequence[StepRecord]) -> WorkSums | None:
    """Add up over ranks and steps; of the ranks of a data-parallel group that share their samples one counts.

    Of each number it is the one that counted most in the step: with a pipeline only some of them may see the batch.

    Returns:
        None where ranks share their samples and not all of them say with whom.
    """
    if not _is_told(records):
        return None
    shared: dict[tuple[StepKey, str, int, int], WorkSums] = {}
    for record in records:
        own = record.rank.rank if record.samples == UNKNOWN else UNKNOWN
        shared.setdefault((record.key, record.rank.role, record.samples, own), WorkSums()).most(record.work)
    total = WorkSums()
    for work in shared.values():
        total.add(work)
    return total


def _is_told(records: Sequence[StepRecord]) -> bool:
    """Whether in each role and attempt all ranks have samples of their own, or all say with whom they share them."""
    found: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for record in records:
        found[record.attempt, record.rank.role].add(min(record.samples, 0))
    return all(len(kinds) == 1 and NOT_TOLD not in kinds for kinds in found.values())
