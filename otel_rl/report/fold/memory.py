"""What traces with a container say of memory: its peaks, where it rose, and its course from step to step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from otel_rl import vocabulary as v
from otel_rl.analysis.stages import Path
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import MemoryPeak
from otel_rl.report.read.memory_course import (
    RAISE_SHARE,
    MemoryGrowth,
    MemoryPeaks,
    Raise,
    StepMemory,
)
from otel_rl.report.read.memory_readings import KEYS, KINDS, MemoryKeys
from otel_rl.tables.forest import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_rl.tables.forest import Flags, Ints
    from otel_rl.tables.span_table import SpanTable
    from otel_rl.tables.stages import StageTable


class OfTrace(NamedTuple):
    """What is known of a trace."""

    attempt: str
    rank: Rank
    phase: str
    iteration: int | None
    container: int
    """Row of the first container."""

    @property
    def whole(self) -> str:
        """Return what is under no stage."""
        return self.phase if self.iteration is None else v.OTHER


class Readings:
    """The readings of memory in some traces of a process, as edges in order of time: starts and ends of spans."""

    def __init__(
        self, table: SpanTable, stages: StageTable, parents: Ints, trace: Ints, is_container: Flags, kept: Flags
    ) -> None:
        """Take over the rows that ``kept`` names; ``parents`` are rows."""
        self.table, self.stages, self.parents, self.trace = table, stages, parents, trace
        self.is_container = is_container
        has_any = np.zeros(len(table), bool)
        for key in KEYS:
            has_any |= table.has(key)
        self.rows = np.flatnonzero(has_any & kept)
        inner = self.rows[table["parent"][self.rows] != 0]
        begin, end = table["begin"][inner], table["end"][inner]
        row = np.concatenate((inner, inner))
        is_start = np.repeat([False, True], len(inner))
        time = np.concatenate((end, begin))
        order = np.lexsort((np.concatenate((-begin, -end)), is_start, time, trace[row]))
        self.row, self.is_start, self.time = row[order], is_start[order], time[order]
        self.of = trace[self.row]
        self.is_frame = (table["parent"] == 0) | is_container

    def label(self, row: int, whole: str) -> str:
        if row == NONE or self.is_frame[row]:
            return whole
        label: str = self.stages.labels[self.stages.label[self.stages.forest.place[row]]]
        return label

    def has(self, keys: MemoryKeys) -> Flags:
        """Return which traces have a kind of memory."""
        found = np.zeros(int(self.trace.max(initial=-1)) + 1, bool)
        of = self.rows[self.table.has(keys.ends[1])[self.rows] | self.table.has(keys.peak)[self.rows]]
        found[self.trace[of]] = True
        return found

    # --- peaks --------------------------------------------------------------------------------------------------------

    def peaks(self, keys: MemoryKeys, peaks: MemoryPeaks, of_trace: dict[int, OfTrace], present: Flags) -> None:
        """Note the highest values; most traces reach none."""
        table, rows = self.table, self.rows
        own = table.integers(keys.peak)[rows]
        size = np.maximum(own, np.maximum(table.integers(keys.ends[0])[rows], table.integers(keys.ends[1])[rows]))
        is_exact = (own >= size) & (table[keys.exact][rows] == 1)
        order = np.argsort(self.trace[rows], kind="stable")
        bounds = np.searchsorted(self.trace[rows][order], np.arange(len(present) + 1))
        for number in np.flatnonzero(present).tolist():
            known = of_trace.get(number)
            of = order[bounds[number] : bounds[number + 1]]
            if known is None or not len(of) or not peaks.may_exceed(int(size[of].max()), known.rank, keys.kind):
                continue
            kinds = of[is_exact[of]], of[~is_exact[of]]
            for place in sorted(int(one[size[one].argmax()]) for one in kinds if len(one)):  # the highest of each
                peaks.reach(
                    MemoryPeak(
                        role=known.rank.role,
                        rank=known.rank.rank,
                        kind=keys.kind,
                        bytes=int(size[place]),
                        is_exact=bool(is_exact[place]),
                        stage=self.label(int(rows[place]), known.whole),
                        iteration=known.iteration,
                    )
                )

    def raises(self, keys: MemoryKeys, of_trace: dict[int, OfTrace], present: Flags) -> dict[int, list[Raise]]:
        """Find where memory rose above all that the trace says before; of rises by a few pages the last is kept."""
        table, row = self.table, self.row
        size = np.where(self.is_start, table.integers(keys.ends[0])[row], table.integers(keys.ends[1])[row])
        own = np.where(self.is_start, 0, table.integers(keys.peak)[row])
        # what a process has from the program before it, after an exec, is in the peak of a container that is not exact
        is_peak = (own > size) & ((table[keys.exact][row] == 1) | ~self.is_container[row])
        value = np.where(is_peak, own, size)
        highest = _before(value, self.of)
        found: dict[int, list[Raise]] = {}
        marks: list[Raise] = []
        last = NONE
        for place in np.flatnonzero((value > highest) & present[self.of] if len(self.of) else self.is_start).tolist():
            number = int(self.of[place])
            known = of_trace.get(number)
            if known is None:
                continue
            if number != last:
                marks, last = found.setdefault(number, []), number
            is_end, at = not self.is_start[place], int(row[place])
            if is_peak[place]:
                is_whole = known.iteration is not None and self.is_container[at]
                stage = "" if is_whole else self.label(at, known.whole)
            else:
                stage = self.label(at if is_end else int(self.parents[at]), known.whole)
            if not marks and not is_end:
                stage = ""
            elif not stage:
                stage = marks[-1].stage if marks and marks[-1].stage else v.LOOP
            one = Raise(int(self.time[place]), int(value[place]), stage, known.iteration)
            if not marks or one.bytes > marks[-1].bytes * (1 + RAISE_SHARE):
                marks.append(one)
                self._pages.pop(number, None)
            else:
                self._pages[number] = one
        return found

    _pages: dict[int, Raise]

    def add_raises(self, keys: MemoryKeys, peaks: MemoryPeaks, of_trace: dict[int, OfTrace], present: Flags) -> None:
        self._pages = {}
        for number, marks in self.raises(keys, of_trace, present).items():
            page = self._pages.get(number)
            peaks.add_raises(of_trace[number].rank, keys.kind, marks if page is None else [*marks, page])

    # --- from step to step --------------------------------------------------------------------------------------------

    def rises(self, keys: MemoryKeys, paths: tuple[Ints, list[Path]]) -> dict[int, list[tuple[Path, int]]]:
        """Return the changes from one reading to the next, up to the end of the container, by trace and open stages."""
        row, is_start = self.row, self.is_start
        size = np.where(is_start, self.table.integers(keys.ends[0])[row], self.table.integers(keys.ends[1])[row])
        is_over = _before((self.is_container[row] & ~is_start).astype(np.int64), self.of) > 0
        kept = np.flatnonzero((size != 0) & ~is_over)
        if not len(kept):
            return {}
        change = np.diff(size[kept], prepend=0)
        of = self.of[kept]
        is_first = np.concatenate(([True], of[1:] != of[:-1]))
        is_change = ~is_first & (change != 0)
        kept, change, of = kept[is_change], change[is_change], of[is_change]
        at = np.where(is_start[kept], self.parents[row[kept]], row[kept])
        path = np.where(at == NONE, 0, paths[0][at])
        keys_of, group = np.unique(of * len(paths[1]) + path, return_inverse=True)
        sums = np.zeros(len(keys_of), np.int64)
        np.add.at(sums, group, change)
        found: dict[int, list[tuple[Path, int]]] = {}
        for key, rise in zip(keys_of.tolist(), sums.tolist(), strict=True):
            found.setdefault(key // len(paths[1]), []).append((paths[1][key % len(paths[1])], rise))
        return found

    def odd(self) -> Flags:
        """Return the traces in which a span has a parent that is not there, beside the containers."""
        found = np.zeros(int(self.trace.max(initial=-1)) + 1, bool)
        is_odd = self.is_start & (self.parents[self.row] == NONE) & ~self.is_container[self.row]
        found[self.of[is_odd]] = True
        return found

    def paths(self) -> tuple[Ints, list[Path]]:
        """Return for each row the labels of the stages around it and of itself; nothing for a container."""
        forest, stages = self.stages.forest, self.stages
        frame = self.is_frame[forest.order]
        listed: list[Path] = [()]
        code = np.zeros(len(forest.order), np.int64)
        for depth in range(int(forest.depth.max(initial=0)) + 1):
            at = np.flatnonzero((forest.depth == depth) & ~frame)
            if not len(at):
                continue
            above = np.where(forest.parent[at] == NONE, 0, code[forest.parent[at]])
            keys, number = np.unique(above * len(stages.labels) + stages.label[at], return_inverse=True)
            first = len(listed)
            for key in keys.tolist():
                listed.append((*listed[key // len(stages.labels)], stages.labels[key % len(stages.labels)]))
            code[at] = first + number
        rows = np.empty(len(code), np.int64)
        rows[forest.order] = code
        return rows, listed


def add_memory(
    readings: Readings, peaks: MemoryPeaks, growth: MemoryGrowth, of_trace: dict[int, OfTrace], ids: dict[int, bytes]
) -> None:
    """Add traces that have a container.

    Args:
        readings: of the traces.
        peaks: what is highest in the run.
        growth: its course over the steps.
        of_trace: what is known of each.
        ids: of the traces of steps.
    """
    paths = readings.paths()
    table = readings.table
    has_edge = {*readings.row[readings.is_container[readings.row]].tolist()}
    for number, known in of_trace.items():
        if known.iteration is not None and known.container in has_edge:
            growth.know_step(ids[number], known.iteration)
    for keys in KINDS:
        present = readings.has(keys)
        readings.peaks(keys, peaks, of_trace, present)
        readings.add_raises(keys, peaks, of_trace, present)
        rises = readings.rises(keys, paths)
        sizes = table.integers(keys.ends[1])
        for number, known in of_trace.items():
            if known.iteration is None or known.container not in has_edge or not present[number]:
                continue
            size = int(sizes[known.container])
            if size:
                key = known.attempt, known.rank, keys.kind
                end_ns = int(table["end"][known.container])
                growth.ranks.setdefault(key, StepMemory()).add(end_ns, known.iteration, size, rises.get(number, []))


def _before(values: Ints, group: NDArray[Any]) -> Ints:
    """Return the largest value before each one in its group, at least 0; groups are together and in order."""
    if not len(values):
        return values
    known, rank = np.unique(values, return_inverse=True)
    reached = known[np.maximum.accumulate(rank + group * len(known)) - group * len(known)]
    is_first = np.concatenate(([True], group[1:] != group[:-1]))
    before: Ints = np.where(is_first, 0, np.concatenate(([0], reached[:-1])))
    return np.maximum(0, before)
