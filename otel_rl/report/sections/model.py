"""FLOPs, MFU and the correctness ledger of a run, read from its journals."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from math import isfinite, isnan
from statistics import median
from typing import Final, cast

from otel_rl import vocabulary as v
from otel_rl.analysis.checksums import LAGS, LogprobSums, MaskSums, TokenSums
from otel_rl.analysis.ledger import Fault, Passage, check
from otel_rl.journal.read import LogView, PointView, Run
from otel_rl.records import Attributes, Value
from otel_rl.report.data.computed import SCOPES, Flops, Ledger, LedgerMismatch, LedgerRank, RankFlops, Scope
from otel_rl.report.read.attributes import integer, rank_of, text

NAMES: Final = (v.FLOPS_RATE, v.MFU)
NUM_LOGPROBS: Final = len(fields(LogprobSums)) - 1 + len(LAGS)
"""Numbers that say how logprobs agree: the correlations are one each."""
PATIENCE: Final = 16
"""A step is judged when its rank has noted so many later ones: rows of a batch that outlasts steps come late."""

RankKey = tuple[str, int]
"""Role and rank."""
LoopKey = tuple[str, str]
"""Attempt and loop."""


@dataclass(slots=True)
class _Values:
    """The points of one metric, rank and scope."""

    values: array[float] = field(default_factory=lambda: array("d"))
    last: Attributes = field(default_factory=dict)
    is_host_clock: bool = False

    def see(self, point: PointView) -> None:
        self.values.append(point.value)
        self.last = point.attributes
        self.is_host_clock |= point.attributes.get(v.CLOCK) == "host"


class FlopsPoints:
    """The points of a run that say how many FLOPs were done. Cost: 8 bytes a point."""

    def __init__(self) -> None:
        """Begin without any point."""
        self._values: defaultdict[tuple[RankKey, str], dict[str, _Values]] = defaultdict(dict)

    def see(self, point: PointView) -> None:
        """Take a point of ``NAMES`` in; what a user recorded under these names has no scope."""
        rank, scope = rank_of(point.resource), text(point.attributes, v.FLOPS_SCOPE)
        if scope in SCOPES and isfinite(point.value):
            self._values[(rank.role, rank.rank), scope].setdefault(point.name, _Values()).see(point)

    def rows(self, notes: Iterable[LogView]) -> Flops:
        """Take the median over the steps of each rank and scope."""
        rows = [_rank_flops(*key, by_name) for key, by_name in self._values.items() if v.FLOPS_RATE in by_name]
        rows.sort(key=lambda row: (row.role, row.rank, SCOPES.index(row.scope)))
        return Flops(ranks=rows, notes=list(dict.fromkeys(note.body for note in notes)))


def _rank_flops(rank: RankKey, scope: str, by_name: dict[str, _Values]) -> RankFlops:
    rates, ratios = by_name[v.FLOPS_RATE], by_name.get(v.MFU)
    last = (ratios or rates).last
    peak = last.get(v.FLOPS_PEAK)
    return RankFlops(
        role=rank[0],
        rank=rank[1],
        scope=cast("Scope", scope),
        steps=len(rates.values),
        per_second=median(rates.values),
        mfu=median(ratios.values) if ratios else None,
        peak=float(peak) if isinstance(peak, int | float) else None,
        peak_source=text(last, v.FLOPS_PEAK_SOURCE),
        formula=text(last, v.FLOPS_FORMULA),
        is_host_clock=rates.is_host_clock,
    )


def ledger(run: Run) -> Ledger:
    """Judge the rows of all ranks, each rank's by themselves: a fault names the ranks that have it."""
    judge = _Judge()
    for log in run.logs(v.LEDGER):
        judge.see(log)
    return judge.result()


class _Judge:
    """Keeps the rows of a few steps of each rank."""

    def __init__(self) -> None:
        self._waiting: defaultdict[tuple[LoopKey, RankKey], dict[int, list[Passage[RankKey]]]] = defaultdict(dict)
        self._ranks: defaultdict[tuple[LoopKey, int], set[RankKey]] = defaultdict(set)
        self._found: dict[tuple[LoopKey, int, str, Fault], list[RankKey]] = {}
        self._rows = 0

    def see(self, log: LogView) -> None:
        rank = rank_of(log.resource)
        loop = text(log.resource, v.ATTEMPT_ID), text(log.attributes, v.LOOP_NAME)
        row = row_of(log, (rank.role, rank.rank))
        self._rows += 1
        self._ranks[loop, row.step].add(row.rank)
        steps = self._waiting[loop, row.rank]
        steps.setdefault(row.step, []).append(row)
        if len(steps) > PATIENCE:
            self._judge(loop, steps.pop(min(steps)))

    def result(self) -> Ledger:
        for (loop, _), steps in self._waiting.items():
            for rows in steps.values():
                self._judge(loop, rows)
        found = [
            LedgerMismatch(
                attempt=loop[0],
                loop=loop[1],
                step=step,
                boundary=boundary,
                fault=fault.value,
                ranks=[LedgerRank(role=role, rank=rank) for role, rank in sorted(ranks)],
                of_ranks=len(self._ranks[loop, step]),
            )
            for (loop, step, boundary, fault), ranks in self._found.items()
        ]
        attempts = list(dict.fromkeys(loop for loop, _ in self._ranks))
        found.sort(key=lambda one: (attempts.index((one.attempt, one.loop)), one.step))
        return Ledger(steps=len(self._ranks), rows=self._rows, mismatches=found)

    def _judge(self, loop: LoopKey, rows: Sequence[Passage[RankKey]]) -> None:
        for one in check(rows):
            ranks = self._found.setdefault((loop, one.step, one.boundary, one.fault), [])
            ranks += [rank for rank in one.ranks if rank not in ranks]


def row_of(log: LogView, rank: RankKey) -> Passage[RankKey]:
    """Read a row as ``observed.ledger`` wrote it down; a part of another form, as a user may record it, is left out."""
    attributes = log.attributes
    tokens = _whole(attributes.get(v.LEDGER_TOKENS), len(fields(TokenSums)))
    mask = _whole(attributes.get(v.LEDGER_MASK), len(fields(MaskSums)))
    shape = attributes.get(v.LEDGER_SHAPE)
    return Passage(
        step=integer(attributes, v.ITERATION),
        rank=rank,
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
    """Read so many whole numbers; none where there are others."""
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


def by_fault(found: Ledger) -> dict[tuple[str, str, tuple[RankKey, ...], int], list[int]]:
    """Group the mismatches that differ only in their step, the most frequent first."""
    groups: defaultdict[tuple[str, str, tuple[RankKey, ...], int], list[int]] = defaultdict(list)
    for one in found.mismatches:
        ranks = tuple((rank.role, rank.rank) for rank in one.ranks)
        groups[one.fault, one.boundary, ranks, one.of_ranks].append(one.step)
    order = Counter({key: len(steps) for key, steps in groups.items()})
    return {key: groups[key] for key, _ in order.most_common()}
