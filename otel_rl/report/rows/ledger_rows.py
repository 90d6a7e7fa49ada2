"""The correctness ledger, from the logs of all ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields
from math import isfinite, isnan
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.analysis.checksums import LAGS, LogprobSums, MaskSums, TokenSums
from otel_rl.analysis.ledger import Fault, Passage, check
from otel_rl.journal.read import LogView, Run
from otel_rl.records import Value
from otel_rl.report.data.details import Ledger, LedgerMismatch
from otel_rl.report.data.ranks import Rank
from otel_rl.report.read.ledger_samples import SampleLogs
from otel_rl.report.read.span_attributes import rank_of
from otel_rl.runs.spans import integer, text

NUM_LOGPROBS: Final = len(fields(LogprobSums)) - 1 + len(LAGS)
"""Numbers on how logprobs agree: the correlations are one each."""
PATIENCE: Final = 16
"""A step is judged when its rank has so many newer ones: a batch may outlast its step."""
LoopKey = tuple[str, str]
FaultKey = tuple[LoopKey, int, str, Fault]
Faults = defaultdict[FaultKey, set[Rank]]
RanksOf = defaultdict[tuple[LoopKey, int], set[Rank]]
MOST_IDS: Final = 16


class LedgerLogs:
    """The ledger's log records of a run: the rows of each rank are judged by themselves, as they come."""

    NAMES: Final = (v.LEDGER, *SampleLogs.NAMES)

    def __init__(self) -> None:
        self._rows = 0
        self._steps: defaultdict[tuple[LoopKey, Rank], dict[int, list[Passage[Rank]]]] = defaultdict(dict)
        """The newest steps of each rank."""
        self._ranks: RanksOf = defaultdict(set)
        self._found: Faults = defaultdict(set)
        self._samples = SampleLogs()

    def add(self, log: LogView) -> None:
        """Add a record of ``NAMES``."""
        if log.event_name != v.LEDGER:
            self._samples.add(log)
            return
        row, loop = row_of(log), (text(log.resource, v.ATTEMPT_ID), text(log.attributes, v.LOOP_NAME))
        self._rows += 1
        self._ranks[loop, row.step].add(row.rank)
        steps = self._steps[loop, row.rank]
        steps.setdefault(row.step, []).append(row)
        if len(steps) > PATIENCE:
            _judge(self._found, loop, steps.pop(min(steps)))

    def ledger(self, run: Run) -> Ledger:
        """Judge what is left; a fault names the ranks that have it. Reads the run again if samples changed."""
        ranks, found = self._ranks, defaultdict(set, {place: set(of_fault) for place, of_fault in self._found.items()})
        for (loop, _), steps in self._steps.items():
            for of_step in steps.values():
                _judge(found, loop, of_step)
        samples: defaultdict[FaultKey, set[str]] = defaultdict(set)
        for one in self._samples.faults(run):
            place = (one.attempt, one.loop), one.step, one.boundary, one.fault
            found[place].add(one.rank)
            samples[place].add(one.sample)
        mismatches = [_mismatch(place, of_fault, ranks, samples[place]) for place, of_fault in found.items()]
        loops = list(dict.fromkeys(loop for loop, *_ in (*ranks, *found)))
        mismatches.sort(key=lambda one: (loops.index((one.attempt, one.loop)), one.step))
        return Ledger(steps=len(ranks), rows=self._rows, mismatches=mismatches)


def ledger(run: Run) -> Ledger:
    """Judge the ledger of a whole run."""
    found = LedgerLogs()
    for log in run.logs(LedgerLogs.NAMES):
        found.add(log)
    return found.ledger(run)


def _mismatch(place: FaultKey, of_fault: set[Rank], ranks: RanksOf, samples: set[str]) -> LedgerMismatch:
    (attempt, loop), step, boundary, fault = place
    return LedgerMismatch(
        attempt=attempt,
        loop=loop,
        step=step,
        boundary=boundary,
        fault=fault.value,
        ranks=sorted(of_fault),
        of_ranks=len(ranks[place[0], step] | of_fault),
        samples=sorted(samples)[:MOST_IDS],
        num_samples=len(samples),
    )


def _judge(found: Faults, loop: LoopKey, rows: Sequence[Passage[Rank]]) -> None:
    for one in check(rows):
        found[loop, one.step, one.boundary, one.fault].update(one.ranks)


def row_of(log: LogView) -> Passage[Rank]:
    """Read a row as ``observing.ledger`` wrote it; a part of another form, as a user may record it, is left out."""
    attributes = log.attributes
    tokens = _whole(attributes.get(v.LEDGER_TOKENS), len(fields(TokenSums)))
    mask = _whole(attributes.get(v.LEDGER_MASK), len(fields(MaskSums)))
    shape = attributes.get(v.LEDGER_SHAPE)
    return Passage(
        step=integer(attributes, v.ITERATION),
        rank=rank_of(log.resource),
        boundary=text(attributes, v.LEDGER_BOUNDARY),
        shape=shape if isinstance(shape, int) else None,
        tokens=TokenSums(*tokens) if tokens else None,
        mask=MaskSums(*mask) if mask else None,
        nonfinite=integer(attributes, v.LEDGER_NONFINITE),
        misfit=integer(attributes, v.LEDGER_MISFIT),
        logprobs=_logprobs(attributes.get(v.LEDGER_LOGPROBS)),
        is_updated=attributes.get(v.LEDGER_UPDATED) is True,
    )


def _whole(values: Value | None, count: int) -> list[int]:
    found = [value for value in values if isinstance(value, int)] if isinstance(values, list | tuple) else []
    return found if len(found) == count else []


def _logprobs(values: Value | None) -> LogprobSums | None:
    if not isinstance(values, list | tuple):
        return None
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    if len(numbers) != NUM_LOGPROBS or not all(map(isfinite, numbers[: -len(LAGS)])):
        return None
    count, mean_abs, mean, largest, zeros, *correlations = numbers
    low, at, high = (None if isnan(value) else value for value in correlations)
    return LogprobSums(int(count), mean_abs, mean, largest, int(zeros), (low, at, high))
