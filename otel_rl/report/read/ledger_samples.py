"""Single samples in a report: what each process noted of them, compared from where they were generated on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
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


class SampleLogs:
    """What processes noted of samples: a number of each one, and what they found by themselves.

    Cost of a sample: 100 bytes, and 5 us at each boundary.
    """

    NAMES: Final = (v.LEDGER_MISMATCH, v.LEDGER_SAMPLES)

    def __init__(self) -> None:
        self._mismatches: list[SampleFault] = []
        self._known: dict[int, int] = {}
        """By number of a sample, that of its sums."""
        self._changed: set[int] = set()
        """Samples that are not the same everywhere."""
        self._remasked: set[str] = set()
        """Attempts that change masks by design."""

    def add(self, log: LogView) -> None:
        if log.event_name == v.LEDGER_MISMATCH:
            boundary, fault = (text(log.attributes, key) for key in (v.LEDGER_BOUNDARY, v.LEDGER_FAULT))
            for sample in _texts(log, v.LEDGER_IDS) if fault in FAULTS else ():
                fault_of = SampleFault(*_place(log), boundary, Fault(fault), rank_of(log.resource), sample)
                self._mismatches.append(fault_of)
            return
        attempt = text(log.resource, v.ATTEMPT_ID)
        if v.LEDGER_SUMS not in log.attributes:
            self._remasked.add(attempt)
        for sample, numbers in _samples(log):
            key, sums = _number(attempt, sample), hash(numbers)
            if self._known.setdefault(key, sums) != sums:
                self._changed.add(key)

    def faults(self, run: Run) -> Iterator[SampleFault]:
        """Return what processes found, then what changed of samples on their way, which another pass looks for."""
        yield from self._mismatches
        noted: defaultdict[tuple[str, str], list[_Noted]] = defaultdict(list)
        for log in run.logs((v.LEDGER_SAMPLES,)) if self._changed else ():
            attempt, loop, step = _place(log)
            boundary, rank = text(log.attributes, v.LEDGER_BOUNDARY), rank_of(log.resource)
            for sample, numbers in _samples(log):
                if _number(attempt, sample) in self._changed:
                    one = _Noted(log.time_ns, boundary, unpacked(numbers), loop, step, rank)
                    noted[attempt, sample].append(one)
        for (attempt, sample), passed in noted.items():
            yield from _compared(attempt, sample, passed, is_remasked=attempt in self._remasked)


def _number(attempt: str, sample: str) -> int:
    """Return a number of a sample that is the same in every process, which a hash of a text is not."""
    return int.from_bytes(blake2b(f"{attempt} {sample}".encode(), digest_size=8).digest(), "big")


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
