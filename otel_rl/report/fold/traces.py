"""Traces of a writer that are over: who is inside whom, and what they say of set-ups, failures and memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from otel_rl import ids
from otel_rl import vocabulary as v
from otel_rl.analysis.goodput import Goodput
from otel_rl.journal.read import SpanView
from otel_rl.report.fold.folded_spans import StepRecord
from otel_rl.report.fold.memory import OfTrace, Readings, add_memory
from otel_rl.report.fold.steps import Steps
from otel_rl.report.read.containers import Bounds, Wall
from otel_rl.report.read.failures import phase_failure, step_failure
from otel_rl.report.read.memory_readings import TraceMemory
from otel_rl.report.read.single_controller.guest_steps import (
    unwrapped,
    waits_of,
)
from otel_rl.report.read.span_attributes import ERROR, clock_set_ns, rank_of
from otel_rl.runs.spans import is_container, iteration_of, text
from otel_rl.tables.calls import calls_of
from otel_rl.tables.forest import Flags, Ints
from otel_rl.tables.span_table import SpanTable, in_front, is_background, parents_in, stage_table, table_of_steps
from otel_rl.tables.stages import StageTable, Within

if TYPE_CHECKING:
    from otel_rl.report.fold.writer import WriterFold


class Traces:
    """Traces of a writer that are over; they are numbered in the order in which they are folded."""

    def __init__(self, writer: WriterFold, table: SpanTable, trace: Ints, count: int, guests: set[int]) -> None:
        self.writer, self.found, self.trace, self.count = writer, writer.found, trace, count
        self.guests = guests
        self.table: SpanTable = table
        self.is_own = table["is_own"]
        self.is_container = writer.containers(table) & self.is_own
        self._set_clocks()
        self.parents = parents_in(table)
        self.has_background = np.zeros(count, bool)
        self.has_background[trace[is_background(table)]] = True
        self.stages: StageTable = stage_table(table, in_front(table, self.parents))
        self.names = writer.texts.listed
        is_comm = table.is_text("name", v.COMM) & (not self.found.drivers)
        self.is_listed: Flags = self.is_own & (~is_comm | (table["status"] == ERROR))
        """Stages, and collectives that failed; in a run with a driver all spans."""

    def _set_clocks(self) -> None:
        """Convert times of spans to the clock as it was before somebody set it."""
        set_ns = np.zeros(self.count, np.int64)
        rows = np.flatnonzero(self.is_container)
        for row in rows.tolist():
            trace, by = int(self.trace[row]), clock_set_ns(self.table["view"][row])
            if abs(by) > abs(set_ns[trace]):
                set_ns[trace] = by
        self.set_ns = set_ns
        if set_ns.any():
            self.table.columns["begin"] = self.table["begin"] - set_ns[self.trace]
            self.table.columns["end"] = self.table["end"] - set_ns[self.trace]

    def make_views(self, rows: Ints) -> None:
        """Make what ``view`` returns of some rows; containers and failed spans have theirs."""
        self.writer.make_views(self.table, rows)

    def view(self, row: int) -> SpanView:
        view: SpanView = self.table["view"][row]
        by = int(self.set_ns[self.trace[row]])
        return view._replace(start_ns=view.start_ns - by, end_ns=view.end_ns - by) if by else view

    def fold(self) -> None:
        stages = self.stages
        rows = np.flatnonzero(self.is_container)
        rows = rows[np.argsort(self.trace[rows], kind="stable")]
        roots = stages.forest.place[rows]
        within = Within(stages, roots)
        iterations = [iteration_of(self.table["view"][row].attributes) for row in rows.tolist()]
        of_trace: defaultdict[int, list[int]] = defaultdict(list)
        for number, row in enumerate(rows.tolist()):
            of_trace[int(self.trace[row])].append(number)
        self.number_of = {
            trace: next((iterations[one] for one in numbers if iterations[one] is not None), None)
            for trace, numbers in of_trace.items()
        }
        is_step = np.array([self.number_of[int(self.trace[row])] is not None for row in rows.tolist()], bool)
        records = Steps(self, within, rows, is_step)
        listed = self._rows_by_trace()
        self.called: list[tuple[int, tuple[SpanView, list[SpanView]]]] = []
        """Steps of guests, by their number, without the updates around their stages."""
        self.of_trace: dict[int, OfTrace] = {}
        self.ids: dict[int, bytes] = {}
        readings = Readings(self.table, stages, self.parents, self.trace, self.is_container, self.is_own)
        self.is_odd = readings.odd() | self.has_background
        self.is_plain = self._plain()
        self.make_views(np.flatnonzero(self.is_listed & ~self.is_plain[self.trace]))
        for trace in range(self.count):
            self._fold_trace(trace, listed[trace], [int(rows[one]) for one in of_trace.get(trace, ())])
            for one in of_trace.get(trace, ()):
                self._spend(self.view(int(rows[one])), records.goodput[one], is_step=bool(is_step[one]))
                if is_step[one]:
                    self.found.steps.append(self._with_waits(records, one, is_guest=trace in self.guests))
                    container = self.view(int(rows[one]))
                    if container.status_code == ERROR:
                        self.make_views(np.array(listed[trace]))
                        views = [self.view(row) for row in listed[trace]]
                        iteration = self.number_of[trace]
                        assert iteration is not None
                        self.writer.run.failed.append((container.end_ns, step_failure(container, iteration, views)))
        if self.writer.run.has_only_steps:
            return
        self._add_calls(within, is_step, records.first)
        add_memory(readings, self.found.peaks, self.found.growth, self.of_trace, self.ids)

    def _with_waits(self, records: Steps, number: int, *, is_guest: bool) -> StepRecord:
        record = records.record(number)
        if not self.found.drivers:
            return record
        container = self.view(int(records.rows[number]))
        within = records.within.inside
        inside = []
        for index in np.flatnonzero(within.root == number).tolist():
            view = self.table["view"][records.row[index]]
            if view is not None:
                view = self.view(int(records.row[index]))
                inside.append(view._replace(parent_id=container.span_id) if within.level[index] == 1 else view)
        record = record._replace(waits=waits_of(container, inside))
        if not is_guest:
            return record
        self.called.append((record.number, unwrapped(container, inside)))
        return record._replace(is_guest=True)

    def _add_calls(self, within: Within, is_step: Flags, first: int) -> None:
        """Keep the calls of the steps; guests are compared in each stage of an update that they are called for."""
        calls = calls_of(within)
        number = calls.rank_step + first
        called = np.array([number for number, _ in self.called], np.int64)
        self.found.calls.append(calls.take(is_step[calls.rank_step] & ~np.isin(number, called), number))
        if self.called:
            calls = calls_of(table_of_steps([step for _, step in self.called]).within)
            self.found.calls.append(replace(calls, rank_step=called[calls.rank_step]))

    def _plain(self) -> Flags:
        """Return the traces of steps whose spans need not be looked at one by one."""
        found = ~self.is_odd & np.array([self.number_of.get(trace) is not None for trace in range(self.count)], bool)
        table = self.table
        found[self.trace[table.is_text("name", v.SETUP) | table.is_text("name", v.TEARDOWN)]] = False
        plain: Flags = found if not self.found.drivers else np.zeros(self.count, bool)
        return plain

    def _rows_by_trace(self) -> list[list[int]]:
        """Return the listed rows of each trace."""
        rows = np.flatnonzero(self.is_listed)
        order = rows[np.argsort(self.trace[rows], kind="stable")]
        bounds = np.searchsorted(self.trace[order], np.arange(self.count + 1))
        return [order[first:last].tolist() for first, last in pairwise(bounds.tolist())]

    def _fold_trace(self, trace: int, rows: list[int], containers: list[int]) -> None:
        found, writer = self.found, self.writer
        roots = [self.view(row) for row in containers]
        set_ns = int(self.set_ns[trace])
        if roots:
            found.clock_set_ns[writer.writer] = set_ns
        if not rows:
            return
        views = [self.view(row) for row in (containers if self.is_plain[trace] else rows)]
        attempt = text(views[0].resource, v.ATTEMPT_ID)
        if set_ns:
            found.set_in.add(attempt)
        iteration = self.number_of.get(trace)
        phase = self._phase(roots, iteration)
        driver = found.drivers.get(views[0].trace_id)
        number = iteration if driver is None else iteration_of(driver.attributes)
        for span in views:
            if span.name in (v.SETUP, v.TEARDOWN) or (is_container(span.name) and iteration is None):
                found.phases[text(span.resource, v.ATTEMPT_ID)].append(span)
        if not roots or self.is_odd[trace]:
            memory = TraceMemory(views, phase, number)
            found.peaks.add(memory)
            found.growth.add(memory, number if roots or driver is not None else self._step_of(views))
        else:
            self.of_trace[trace] = OfTrace(attempt, rank_of(views[0].resource), phase, number, containers[0])
            self.ids[trace] = roots[0].trace_id
        if number is None and (roots or driver is not None):
            failure = phase_failure(phase, views)
            found.outside += [failure] if failure is not None else []
        if roots and trace not in self.guests:
            found.holders.add(writer.writer)

    def _phase(self, roots: Sequence[SpanView], iteration: int | None) -> str:
        """Return whether what is in no step of a trace is set-up or tear-down, and note when its steps began."""
        begun_ns = min((span.start_ns for span in roots), default=0)
        is_later = begun_ns >= self.writer.stepped
        if roots and iteration is None:  # also where the journal has the end of a short process before its steps
            is_later = not any(map(_is_below_setup, roots))
        if iteration is not None:
            self.writer.stepped = min(begun_ns, self.writer.stepped)
        return v.TEARDOWN if is_later else v.SETUP

    def _step_of(self, spans: Sequence[SpanView]) -> int | None:
        """Return the step in which a rollout ended that has a trace of its own; None if that is not known."""
        key = self.found.trajectories.step_of(max(spans, key=lambda span: span.end_ns))
        return None if key is None else key[2]

    def _spend(self, container: SpanView, parts: Goodput, *, is_step: bool) -> None:
        key = text(container.resource, v.ATTEMPT_ID), rank_of(container.resource)
        begin_ns, end_ns = container.start_ns, max(container.start_ns, container.end_ns)
        wall = self.found.walls.setdefault(key, Wall(begin_ns, end_ns))
        wall.widen(begin_ns, end_ns)
        self.found.widen(key[0], Bounds(begin_ns, end_ns))
        if not is_step:
            wall.phases.append(((begin_ns, end_ns), parts))


def _is_below_setup(container: SpanView) -> bool:
    return container.parent_id == ids.root_id(text(container.resource, v.ATTEMPT_ID), v.SETUP, 0).to_bytes(8, "big")
