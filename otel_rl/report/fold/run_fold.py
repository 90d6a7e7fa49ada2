"""One pass over the spans of a run, writer by writer."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING

from otel_rl.journal.files import Journal
from otel_rl.journal.read import OpenView, Run, SpanView, span_columns
from otel_rl.report.data.report import Failure
from otel_rl.report.fold.folded_spans import GOODPUT, FoldedSpans, StepRecord, with_peers
from otel_rl.report.fold.writer import VIEWED, WriterFold
from otel_rl.report.read.containers import Bounds
from otel_rl.report.read.failures import failures_of_calls, without_passed_on
from otel_rl.report.read.single_controller.guest_steps import drivers_first, drivers_of
from otel_rl.report.read.single_controller.shared_devices import SharedDevices
from otel_rl.report.read.step_stages import Shapes

if TYPE_CHECKING:
    from otel_rl.journal.columns.decode import SpanColumns


class RunFold:
    """Folds the spans of a run: as many as there are, then those that came since, and so on.

    Drivers are read before those that they call. ``finish`` ends it.
    """

    def __init__(self, *, is_led: bool = False, has_only_steps: bool = False) -> None:
        self.is_led = is_led
        """Whether the run has a driver."""
        self.has_only_steps = has_only_steps
        """Whether to leave out calls and memory, which take a third of the time."""
        self.found = FoldedSpans()
        self.writers: dict[str, WriterFold] = {}
        self.steps = 0
        """Number of steps of all ranks so far; each has a number below it."""
        self.shapes: Shapes = {}
        self.failed: list[tuple[int, Failure]] = []
        """Failures in steps, each with its time in ns."""
        self.bounds: dict[str, Bounds] = {}
        """By attempt: the bounds of its records, whether a clock was set or not."""
        self.errors: list[SpanView] = []
        """Spans that failed in processes that are called, and in drivers, which may have rollouts."""
        self.called_ns: dict[bytes, int] = {}
        """When the last call of each stage that failed in a driver began."""
        self.devices = SharedDevices()

    def read(self, journal: Journal, batches: Iterable[SpanColumns]) -> None:
        """Fold spans of a writer, and close those of its traces that are over."""
        self._writer(journal).read(batches)
        self.found.trajectories.place()

    def finish(self, closed: Sequence[SpanView]) -> FoldedSpans:
        """Fold what is left, and some spans that a reader closed; nothing can be read afterwards."""
        of_writer: defaultdict[str, list[SpanView]] = defaultdict(list)
        for view in closed:
            of_writer[self._writer(view.journal).writer].append(view)
        found = self.found
        for has_steps in (True, False):  # what is beside the ranks is placed in the steps of these
            for name, writer in self.writers.items():
                if writer.has_steps is has_steps:
                    writer.finish(of_writer[name])
            if has_steps and not found.drivers:
                found.place_by_ranks()
        found.trajectories.place()
        for attempt, widest in self.bounds.items():
            if attempt not in found.set_in:
                found.widen(attempt, widest)
        found.growth.finish()
        steps = [self._of_use(record) if record.is_guest else record for record in with_peers(found.steps)]
        found.steps = sorted(steps, key=attrgetter("step", "rank.role", "rank.rank"))
        step_of = found.trajectories.step_of
        called = failures_of_calls(self.errors, self.failed, found.drivers, step_of, found.guests, self.called_ns)
        found.survived, found.passed_on = called.survived, called.passed_on
        found.failed_calls = {failure for _, failure in called.failures}
        ended = [(time_ns, replace(one, follows=called.heard.get(one, one.follows))) for time_ns, one in self.failed]
        self.failed = [*without_passed_on(ended, found.failed_calls - found.survived), *called.failures]
        found.failures = [failure for _, failure in sorted(self.failed, key=itemgetter(0))]
        found.outside.sort(key=lambda failure: failure.end_ns)
        found.attempts = dict(sorted(found.attempts.items(), key=lambda item: item[1].begin_ns))
        return found

    def pending_steps(self, window_ns: float) -> list[StepRecord]:
        """Return the steps of the traces that may not be over and ended within some time; nothing is closed."""
        spare = RunFold(is_led=self.is_led, has_only_steps=True)
        spare.found.drivers, spare.shapes = self.found.drivers, self.shapes
        for writer in self.writers.values():
            writer.fold_recent(spare, window_ns)
        return spare.found.steps

    def count_steps(self, count: int) -> int:
        """Return the first of some numbers that no step has."""
        self.steps += count
        return self.steps - count

    def _writer(self, journal: Journal) -> WriterFold:
        name = journal.identity.writer
        return self.writers.get(name) or self.writers.setdefault(name, WriterFold(self, journal))

    def _of_use(self, record: StepRecord) -> StepRecord:
        """Return a step of a guest with what rollout servers did on its device meanwhile."""
        host = self.found.hosts[record.attempt, record.rank].name
        goodput = self.devices.with_rollouts(record.goodput, record.waits, record.attempt, host)
        numbers = array("q", record.sums)
        numbers[GOODPUT] = array("q", goodput)
        return record._replace(sums=numbers.tobytes())


def fold(run: Run, opened: Sequence[OpenView]) -> FoldedSpans:
    """Fold the spans of a run; stages in which dead processes ended are closed."""
    spans = RunFold(is_led=bool(drivers_of(run)))
    for journal in drivers_first(run).journals:
        spans.read(journal, span_columns(journal))
    return spans.finish([one.closed(VIEWED) for one in opened if not one.alive])
