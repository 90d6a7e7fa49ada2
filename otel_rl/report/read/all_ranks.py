"""What all ranks handled together: a sample that several of them share counts once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import reduce

from otel_rl.report.read.collect import StepKey, StepRecord
from otel_rl.report.read.span_attributes import WorkSums
from otel_rl.runs.spans import NOT_TOLD, UNKNOWN


def work_of_all(records: Sequence[StepRecord]) -> WorkSums | None:
    """Add up over ranks and steps; of ranks that share their samples the one counts that counted most.

    Returns:
        None if ranks share their samples and not all of them say with whom.
    """
    if not _is_told(records):
        return None
    shared: dict[tuple[StepKey, str, int, int], WorkSums] = {}
    for record in records:
        own = record.rank.rank if record.samples == UNKNOWN else UNKNOWN
        key = record.key, record.rank.role, record.samples, own
        shared[key] = shared.get(key, WorkSums()).most(record.work)
    return reduce(WorkSums.plus, shared.values(), WorkSums())


def _is_told(records: Sequence[StepRecord]) -> bool:
    """Whether in each role and attempt all ranks have samples of their own, or all say with whom they share them."""
    found: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for record in records:
        found[record.attempt, record.rank.role].add(min(record.samples, 0))
    return all(len(kinds) == 1 and NOT_TOLD not in kinds for kinds in found.values())
