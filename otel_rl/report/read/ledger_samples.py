"""Single samples in a report: what each process noted of them, compared from where they were generated on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.analysis.ledger import SAMPLE_NUMBERS, Fault, SampleSums, fault_between, unpacked
from otel_rl.journal.read import LogView, Run
from otel_rl.report.data.ranks import Rank
from otel_rl.report.read.span_attributes import rank_of
from otel_rl.runs.spans import integer, text

FAULTS: Final = frozenset(one.value for one in Fault)
MASKS: Final = Fault.SHIFTED_MASK, Fault.OTHER_MASK


@dataclass(frozen=True, slots=True)
class SampleFault:
    """One fault of one sample, or of its group."""

    attempt: str
    loop: str
    step: int
    boundary: str
    fault: Fault
    rank: Rank
    sample: str


@dataclass(frozen=True, slots=True)
class _Noted:
    time_ns: int
    boundary: str
    sums: SampleSums
    loop: str
    step: int
    rank: Rank


def sample_faults(run: Run) -> Iterator[SampleFault]:
    """Find what processes found by themselves, then what changed of samples on their way.

    The first pass keeps a number of each sample; the second reads those of which there is more than one. Cost of a
    sample: 200 bytes while this runs, 5 us at each boundary.
    """
    for log in run.logs(v.LEDGER_MISMATCH):
        boundary, fault = (text(log.attributes, key) for key in (v.LEDGER_BOUNDARY, v.LEDGER_FAULT))
        for sample in _texts(log, v.LEDGER_IDS) if fault in FAULTS else ():
            yield SampleFault(*_place(log), boundary, Fault(fault), rank_of(log.resource), sample)
    changed, remasked = _changed(run)
    noted: defaultdict[tuple[str, str], list[_Noted]] = defaultdict(list)
    for log in run.logs(v.LEDGER_SAMPLES) if changed else ():
        attempt, loop, step = _place(log)
        boundary, rank = text(log.attributes, v.LEDGER_BOUNDARY), rank_of(log.resource)
        for sample, numbers in _samples(log):
            if hash((attempt, sample)) in changed:
                one = _Noted(log.time_ns, boundary, unpacked(numbers), loop, step, rank)
                noted[attempt, sample].append(one)
    for (attempt, sample), passed in noted.items():
        yield from _compared(attempt, sample, passed, is_remasked=attempt in remasked)


def _changed(run: Run) -> tuple[set[int], set[str]]:
    """Return hashes of the samples that are not the same everywhere, and the attempts that change masks by design."""
    known: dict[int, int] = {}
    changed, remasked = set(), set()
    for log in run.logs(v.LEDGER_SAMPLES):
        attempt = text(log.resource, v.ATTEMPT_ID)
        if v.LEDGER_SUMS not in log.attributes:
            remasked.add(attempt)
        for sample, numbers in _samples(log):
            key, sums = hash((attempt, sample)), hash(numbers)
            if known.setdefault(key, sums) != sums:
                changed.add(key)
    return changed, remasked


def _compared(attempt: str, sample: str, passed: list[_Noted], *, is_remasked: bool) -> Iterator[SampleFault]:
    """Compare each boundary with the one before it, on every rank; without its generation a sample is not judged."""
    origins = [one for one in passed if one.boundary == v.SAMPLE]
    if not origins:
        return
    first = min(origins, key=lambda one: one.time_ns)
    if any(one.sums != first.sums for one in origins):
        place = attempt, first.loop, first.step, v.SAMPLE
        yield SampleFault(*place, Fault.SHARED_GROUP, first.rank, sample)
        return
    before = first
    for one in sorted(passed, key=lambda one: one.time_ns):
        fault = fault_between(before.sums, one.sums)
        if fault is not None and not (is_remasked and fault in MASKS):
            place = attempt, one.loop, one.step, f"{before.boundary} -> {one.boundary}"
            yield SampleFault(*place, fault, one.rank, sample)
        if one.boundary != v.SAMPLE:
            before = one


def _place(log: LogView) -> tuple[str, str, int]:
    loop = text(log.attributes, v.LOOP_NAME)
    return text(log.resource, v.ATTEMPT_ID), loop, integer(log.attributes, v.ITERATION)


def _samples(log: LogView) -> Iterator[tuple[str, tuple[int, ...]]]:
    ids, sums = _texts(log, v.LEDGER_IDS), log.attributes.get(v.LEDGER_SUMS)
    if isinstance(sums, list | tuple) and len(sums) == SAMPLE_NUMBERS * len(ids):
        for at, sample in enumerate(ids):
            numbers = tuple(
                one for one in sums[at * SAMPLE_NUMBERS : (at + 1) * SAMPLE_NUMBERS] if isinstance(one, int)
            )
            if len(numbers) == SAMPLE_NUMBERS:
                yield sample, numbers


def _texts(log: LogView, key: str) -> list[str]:
    found = log.attributes.get(key)
    return [str(one) for one in found] if isinstance(found, list | tuple) else []
