"""The spans of one writer: some thousands at a time, and the traces that are over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from itertools import pairwise
from math import inf
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_rl import vocabulary as v
from otel_rl.journal.files import Journal
from otel_rl.journal.read import SpanView
from otel_rl.report.fold.traces import Traces
from otel_rl.report.read.containers import Bounds
from otel_rl.report.read.memory_readings import KEYS as MEMORY_KEYS
from otel_rl.report.read.request_spans import KEYS as REQUEST_KEYS
from otel_rl.report.read.single_controller.guest_steps import (
    DRIVER,
    TRAINING,
    has_container,
    is_driver,
    with_container,
)
from otel_rl.report.read.single_controller.trajectories import KEYS as ROLLOUT_KEYS
from otel_rl.report.read.span_attributes import ERROR, KEYS, clock_set_ns, rank_of
from otel_rl.runs.spans import (
    SKEW,
    call_of,
    is_container,
    own_stages,
    text,
)
from otel_rl.tables.forest import NONE, combinations
from otel_rl.tables.span_table import (
    STAGE_KEYS,
    SpanTable,
    Texts,
    join,
    table_of_columns,
    table_of_views,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_rl.journal.columns.decode import SpanColumns
    from otel_rl.report.fold.run_fold import RunFold
    from otel_rl.tables.forest import Ints

ROWS: Final = 100_000
"""So many spans of a writer are folded at once."""
LEAST_ROWS: Final = 4_000
"""Fewer wait for more: to look for traces that are over costs as much as to fold hundreds of spans."""
PENDING_STEPS: Final = 4
PENDING_NS: Final = 12_000_000_000
MOST_PENDING: Final = 256
VIEWED: Final = frozenset((*KEYS, *MEMORY_KEYS, *REQUEST_KEYS, *ROLLOUT_KEYS))
COLUMNS: Final = (
    *STAGE_KEYS, v.SUBMISSION, v.CLOCK_SET, v.TRUNCATED, v.ITERATION, v.MODE, v.TOKENS,
    v.TOKENS_PROMPT, v.TOKENS_RESPONSE, v.TOKENS_ENVIRONMENT, v.TOKENS_PADDING, v.SAMPLE_BATCH_SIZE, v.BATCH_SIZE,
    v.OPTIMIZER_SKIPPED, *MEMORY_KEYS,
)  # fmt: skip


class WriterFold:
    """Folds the spans of one writer."""

    def __init__(self, run: RunFold, journal: Journal) -> None:
        self.run, self.found, self.journal = run, run.found, journal
        self.has_steps = False
        """Whether the process has steps of its own."""
        self.is_training = False
        """Whether the process trains in the steps of a driver."""
        self.lent: set[bytes] = set()
        self.writer = journal.identity.writer
        self.texts = Texts()
        self.resources: list[Any] = []
        self.numbers: dict[int, int] = {}
        self.stepped = inf
        self.pending: list[SpanTable] = []
        self.batches: dict[int, SpanColumns] = {}
        """What was read of spans that are pending, by number."""
        self.read_batches = 0

    def read(self, batches: Iterable[SpanColumns]) -> None:
        """Fold spans that were read, and close the traces that are over."""
        rows = 0
        for batch in batches:
            table = self._add(self._table(batch))
            self.pending.append(table)
            rows += len(table)
            if rows >= ROWS:
                rows = self._close(is_end=False)
        if rows and sum(map(len, self.pending)) >= LEAST_ROWS:
            self._close(is_end=False)

    def finish(self, closed: Sequence[SpanView]) -> None:
        """Close all traces, with some spans that a reader closed."""
        if closed:
            table = table_of_views(closed, self.texts, COLUMNS, [self._resource(one.resource) for one in closed])
            self.pending.append(self._add(table))
        if self.pending:
            self._close(is_end=True)

    def fold_recent(self, run: RunFold, window_ns: float) -> None:
        """Fold what is pending into another fold; a part of it stays what it was here."""
        spare = copy(self)
        spare.run, spare.found, spare.lent = run, run.found, set(self.lent)
        spare._leave_recent(window_ns)
        spare.finish(())

    def _leave_recent(self, window_ns: float) -> None:
        """Drop what is pending of traces that ended longer ago; a process that is called has none that end."""
        table = join(self.pending) if self.pending else None
        is_end = None if table is None else self.containers(table) & table["is_own"]
        if table is not None and is_end is not None and is_end.any():
            ends = table["end"][is_end]
            recent = table["trace"][is_end][ends >= ends.max() - window_ns]
            self.pending = [table.take(np.isin(table["trace"], recent))]

    def _resource(self, resource: Any) -> int:
        number = self.numbers.setdefault(id(resource), len(self.resources))
        if number == len(self.resources):
            self.resources.append(resource)
        return number

    def _table(self, batch: SpanColumns) -> SpanTable:
        codes = np.unique(batch.rows["resource"]).tolist()
        known = {code: self._resource(self.journal.resource(batch.blobs[code])) for code in codes}
        resource = np.array([known.get(code, 0) for code in range(max(codes, default=-1) + 1)], np.int64)
        number, self.read_batches = self.read_batches, self.read_batches + 1
        self.batches[number] = batch
        table = table_of_columns(batch, self.texts, COLUMNS, resource[batch.rows["resource"]], number)
        self.run.is_led |= self._is_driver()
        is_container = self.containers(table)
        self.has_steps |= bool((is_container & table.has(v.ITERATION)).any())
        is_seen = is_container | (table["status"] == ERROR) | table.has(v.SUBMISSION)
        self.make_views(table, np.arange(len(table)) if self.run.is_led else np.flatnonzero(is_seen))
        return table

    def make_views(self, table: SpanTable, rows: Ints) -> None:
        """Make the ``SpanView`` of some rows, since most are never looked at one by one. Cost: 2 us a span."""
        rows = rows[np.array([one is None for one in table["view"][rows].tolist()], bool)]
        for number in sorted({*table["batch"][rows].tolist()}):
            batch, of = self.batches[number], rows[table["batch"][rows] == number]
            of = of[np.argsort(table["row"][of])]
            kept = np.zeros(len(batch.rows), bool)
            kept[table["row"][of]] = True
            table["view"][of] = _objects(list(batch.views(self.journal, VIEWED, kept)))

    # --- each span ----------------------------------------------------------------------------------------------------

    def _add(self, table: SpanTable) -> SpanTable:
        """Note what each span says, and return the stages."""
        is_derived = table.is_text("name", v.IDLE) & table.is_text(v.IDLE_REASON, SKEW)
        if is_derived.any():
            table = table.take(~is_derived)
        if not len(table):
            return table
        self._note_bounds(table)
        self._note_longest(table)
        is_request = table.has(v.SUBMISSION)
        for view in table["view"][is_request].tolist():
            self.found.requests.add(view)
        table = table.take(~is_request) if is_request.any() else table
        if self.run.is_led:
            names = {self.texts.listed[code] for code in np.unique(table["name"]).tolist()}
            self.is_training |= not self._is_driver() and not TRAINING.isdisjoint(names)
            for view in filter(is_driver, table["view"].tolist()):
                self._note_driver(view)
        else:
            rows = np.flatnonzero(table.is_text("name", v.TRAJECTORY))
            self.make_views(table, rows)
            for view in table["view"][rows].tolist():
                self.found.trajectories.add_group(view)
        return table

    def _is_driver(self) -> bool:
        return any(text(resource, v.ROLE) == DRIVER for resource in self.resources)

    def _is_beside(self) -> bool:
        """Return whether the process works beside ranks that hold the steps, in a role of its own."""
        roles = {record.rank.role for record in self.found.steps}
        return bool(roles) and not any(rank_of(resource).role in roles for resource in self.resources)

    def _note_driver(self, span: SpanView) -> None:
        """Note what a driver did; drivers are read first."""
        if is_container(span.name):
            self.found.drivers[span.trace_id] = span
            self.found.led.add(text(span.resource, v.ATTEMPT_ID))
            self.found.trajectories.add_step(span)
            return
        if span.name == v.TRAJECTORY:  # agent loops may run beside the steps, in the driver's own process
            self.found.trajectories.add(span)
        if span.status_code == ERROR:
            self.run.errors.append(span)
            self.run.called_ns[span.span_id] = 0
        self.run.devices.add(span)

    def _note_called(self, spans: Iterable[SpanView]) -> None:
        """Note what a process did that has no steps, when the steps are known in which that was."""
        found, run = self.found, self.run
        for span in sorted(spans, key=attrgetter("end_ns")):
            if is_driver(span) or is_container(span.name):
                continue
            driver = found.drivers.get(span.trace_id)
            if span.status_code == ERROR:
                run.errors.append(span)
            if span.parent_id in run.called_ns:
                run.called_ns[span.parent_id] = max(run.called_ns[span.parent_id], span.start_ns)
            if driver is None or v.ITERATION in driver.attributes:
                found.roles.add(span)
            if span.name == v.TRAJECTORY:
                found.trajectories.add(span)
            run.devices.add(span)

    def _note_bounds(self, table: SpanTable) -> None:
        codes = np.unique(table["resource"], return_index=True)
        for number, _ in sorted(zip(*(one.tolist() for one in codes), strict=True), key=itemgetter(1)):
            resource, of = self.resources[number], table["resource"] == number
            begin_ns, end_ns = int(table["begin"][of].min()), int(table["end"][of].max())
            bounds = self.run.bounds.setdefault(text(resource, v.ATTEMPT_ID), Bounds(begin_ns, end_ns))
            bounds.widen(begin_ns, end_ns)
            self.found.know(resource, self.journal.identity)

    def _note_longest(self, table: SpanTable) -> None:
        table = table.take(~table.has(v.TRUNCATED))
        texts = self.texts.listed
        keys = (v.LOGPROB_KIND, v.IDLE_REASON, v.CHECKPOINT_LOAD)
        columns = [table["name"], *(table[key] for key in keys), table.has(v.ITERATION).astype(np.int64)]
        if not len(table):
            return
        first, group = combinations(*columns)
        longest = np.full(len(first), -(1 << 62))
        np.maximum.at(longest, group, table["end"] - table["begin"])
        for row, time_ns in zip(
            zip(*(column[first].tolist() for column in columns), strict=True), longest.tolist(), strict=True
        ):
            name, kind, reason, load, has_iteration = row
            attributes: dict[str, Any] = {v.CHECKPOINT_LOAD: load == 1}
            attributes |= {v.ITERATION: 0} if has_iteration else {}
            attributes |= {v.LOGPROB_KIND: texts[kind]} if kind >= 0 else {}
            attributes |= {v.IDLE_REASON: texts[reason]} if reason >= 0 else {}
            call = call_of(texts[name], attributes)
            self.found.longest_ns[call] = max(self.found.longest_ns.get(call, 0), time_ns)

    # --- traces that are over -----------------------------------------------------------------------------------------

    def _close(self, *, is_end: bool) -> int:
        """Fold the traces that are over; return how many spans are left."""
        table = join(self.pending)
        traces, first, trace = np.unique(table["trace"], return_index=True, return_inverse=True)
        is_root = self.containers(table) & table["is_own"]
        rows = np.flatnonzero(is_root)
        order = list(dict.fromkeys(trace[rows].tolist()))
        ends = {}
        for row in rows.tolist():
            ends[int(trace[row])] = int(table["end"][row]) - clock_set_ns(table["view"][row])
        is_called = bool(self.found.drivers) and not len(rows)
        if is_called:  # its traces are over with its driver's
            latest = np.zeros(len(traces), np.int64)
            np.maximum.at(latest, trace, table["end"])
            order = np.argsort(first, kind="stable").tolist()
            ends = {one: int(latest[one]) for one in order}
        if is_end:
            closed = order + [one for one in np.argsort(first).tolist() if one not in ends]
        else:
            newest = max(ends.values(), default=0)
            most = order[: max(0, len(order) - PENDING_STEPS)]
            closed = [
                one
                for place, one in enumerate(most)
                if len(order) - place > MOST_PENDING
                or (ends[one] < newest - PENDING_NS and (not is_called or self._has_ended(table, first[one])))
            ]
        is_closed = np.zeros(len(traces), bool)
        is_closed[closed] = True
        turn = np.zeros(len(traces), np.int64)
        turn[closed] = np.arange(len(closed))
        kept = is_closed[trace]
        if closed:
            over = table.take(kept)
            is_beside = is_end and not self.found.drivers and not self.has_steps and self._is_beside()
            if is_beside:
                self.make_views(over, np.arange(len(over)))
            self._note_called(over["view"].tolist() if self.found.drivers or is_beside else ())
            Traces(self, *self._with_guests(over, turn[trace[kept]], len(closed))).fold()
        self._keep(table.take(~kept))
        return len(self.pending[0])

    def _has_ended(self, table: SpanTable, row: int) -> bool:
        """Return whether the step of a driver has ended in which a span of another process is."""
        return table["view"][row].trace_id in self.found.drivers

    def _keep(self, left: SpanTable) -> None:
        """Keep spans whose traces go on, and of what was read with them as little as possible."""
        self.pending, batches = [left], self.batches
        self.batches = {}
        for number in sorted({*left["batch"].tolist()}):
            if number != NONE:
                of = left["batch"] == number
                self.batches[number], left["row"][of] = batches[number].take(left["row"][of])

    def _with_guests(self, table: SpanTable, trace: Ints, count: int) -> tuple[SpanTable, Ints, int, set[int]]:
        """Give what a rank recorded in a step of its driver a container of its own, and the waits between its calls."""
        guests: set[int] = set()
        if not self.found.drivers or not self.is_training:
            return table, trace, count, guests
        tables, traces = [], []
        order = np.argsort(trace, kind="stable")
        bounds = np.searchsorted(trace[order], np.arange(count + 1)).tolist()
        is_kept = np.ones(len(table), bool)
        for number, (first, last) in enumerate(pairwise(bounds)):
            rows = order[first:last]
            spans = list(own_stages(table["view"][rows].tolist()))
            driver = self.found.drivers.get(spans[0].trace_id) if spans else None
            if driver is None or driver.trace_id in self.lent or has_container(spans):
                continue
            self.lent.add(driver.trace_id)
            self.found.guests.add((text(spans[0].resource, v.ATTEMPT_ID), rank_of(spans[0].resource)))
            made = with_container(spans, driver)
            is_kept[rows] = False
            tables.append(table_of_views(made, self.texts, COLUMNS, [self._resource(one.resource) for one in made]))
            traces.append(np.full(len(made), number))
            guests.add(number)
        if not guests:
            return table, trace, count, guests
        whole = join([table.take(is_kept), *tables])
        return whole, np.concatenate([trace[is_kept], *traces]), count, guests

    def containers(self, table: SpanTable) -> NDArray[np.bool_]:
        flags = np.array([is_container(one) for one in self.texts.listed] or [False], bool)
        return flags[table["name"]]


def _objects(values: list[Any]) -> NDArray[Any]:
    array = np.empty(len(values), object)
    array[:] = values
    return array
