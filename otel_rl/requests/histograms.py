"""Folds finished requests into metrics, and gives the spans of a rollout once it is over; used by the flusher only."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable
from time import monotonic_ns
from typing import Any, Final

from otel_rl import vocabulary as v
from otel_rl.guard import guard
from otel_rl.metrics.record import Fold
from otel_rl.process.state import state
from otel_rl.records import Exemplar, Labels, Noted, Point, Span, Value
from otel_rl.requests.bulk import bulk
from otel_rl.requests.columns import ERROR, TURN, Derived, Numbers, Table, clean, has_error, is_failed
from otel_rl.requests.engine_load import Engines
from otel_rl.requests.labels import Words
from otel_rl.requests.measures import EXPONENTIAL, HISTOGRAMS, NS, OUTCOMES, SHARES
from otel_rl.requests.parents import PURPOSES, ROLLOUTS, TRAINING, Bucket, Purpose, Stages, apart
from otel_rl.requests.queue import KvCache, Load, Request
from otel_rl.requests.reader import Reading
from otel_rl.requests.rollout import Rollout
from otel_rl.requests.sampling import Policy, outcomes
from otel_rl.requests.span import request_span
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage
from otel_rl.vocabulary import CONTAINER

TOGETHER: Final = 4_000
"""Requests whose numbers wait until they are counted in histograms at once, 96 bytes each."""
QUIET_NS: Final = 5_000_000_000
"""Requests outside of steps are held together until none has come for so long,"""
LONG_NS: Final = 60_000_000_000
"""or until it has gone on for so long: nobody tells when they end."""
MOST_ROLLOUTS: Final = 64
"""Rollouts that are held at once; then the one that was quiet for longest is taken for over."""
KEPT_TRACES: Final = 256
"""Traces of which it is known how many spans they have and that their step is over."""
NOTHING: Final[dict[str, Value]] = {}
PLACES: Final = tuple(Numbers._fields.index(column) for _, column, _, _ in HISTOGRAMS)
"""Of the numbers that the histograms are of."""
COUNTED: Final = (*PLACES, Numbers._fields.index("preemptions"))


class RequestFold:
    """The requests of this process on their way into metrics and spans."""

    def __init__(self, fold: Fold) -> None:
        """Begin without requests.

        Args:
            fold: takes the metrics.
        """
        config = state.config
        self._policy = Policy(
            failed=config.request_failures,
            extreme=config.request_extremes,
            sample=config.request_sample,
            total=config.request_spans,
        )
        self._fold = fold
        buckets = EXPONENTIAL if fold.is_exponential else (bounds for _, _, bounds, _ in HISTOGRAMS)
        self._bounds: tuple[tuple[int, ...], ...] = (*buckets, ())
        """Of the histograms, and for preemptions, of which only the sum is told."""
        self._engines = Engines(fold)
        self._words = Words()
        self._derived: dict[Labels, list[Derived]] = {}
        """By the labels of their series, what waits to be counted in histograms: most batches of a cycle are small,"""
        self._waiting = 0
        """and so many requests they are."""
        self._rollouts: dict[Any, Rollout] = {}
        """By the stage or step that they are, or what is held together for traces of others; by their purpose; and by
        whether they ended after the stage, which is no rollout of its own."""
        self.stages = Stages()
        """All that were seen."""
        self._used: OrderedDict[int, int] = OrderedDict()
        """By trace id, spans that requests have become."""
        self._over: OrderedDict[int, None] = OrderedDict()
        """Trace ids of the steps that have ended."""
        self._staged: OrderedDict[int, frozenset[Labels]] = OrderedDict()
        """By trace id, of what kinds, by their labels, it had requests in rollout stages."""
        self._reading = Reading(self._count_all, self._bad, self._over)
        self._telling: dict[Labels, list[tuple[Numbers, Stage]]] = {}
        """By the labels of their series, requests of this cycle that became spans: exemplars point at the last ones."""

    # --- as requests come in ------------------------------------------------------------------------------------------

    def load(self, load: Load) -> None:
        """Take in how busy an engine says that it is."""
        self._engines.take(load)

    def kv_cache(self, cache: KvCache) -> None:
        """Take in how many bytes an engine's KV cache takes."""
        self._engines.take_cache(cache)

    def look(self, *stages: Collection[Any]) -> None:
        """See the stages among what is open or has ended, before requests below them are counted."""
        for some in stages:
            self.stages.remember(some)

    def read(self, noted: Noted, *, hurry: bool) -> None:
        """Read the rows of engines; what a reader gave before it failed is kept. Cost: 0.5 us and the reader's own.

        Args:
            noted: finished requests; it is empty then, unless other threads still add to it: they will queue it again.
            hurry: somebody waits; otherwise the interpreter is let go of between slices.
        """
        self._reading.read(noted, hurry=hurry)

    def _count_all(self, buckets: Iterable[Bucket]) -> None:
        """Count what waits in several places."""
        self.stages.remember(tracing.open.copy())
        for bucket in buckets:
            with guard("count requests"):
                self._count(bucket)

    def _count(self, bucket: Bucket) -> None:
        """Count the rows that wait in one place."""
        problems: Counter[str] = Counter()
        table = clean(bucket.rows, bucket.parents(), problems)
        if table is not None:
            if bucket.problem:
                problems[bucket.problem] += len(table.rows)
            purposes = self.stages.purposes(set(table.parents))
            kinds = sorted(set(purposes.values()))
            for purpose in kinds:
                with guard("count requests"):
                    rows = table.below(purposes, purpose) if len(kinds) > 1 else table
                    for part, is_after in apart(bucket.key, rows):
                        self._count_purpose(bucket, part, purpose, problems, is_after=is_after)
        self._bad(problems)

    def _count_purpose(
        self, bucket: Bucket, rows: Table, purpose: Purpose, problems: Counter[str], *, is_after: bool
    ) -> None:
        """Count rows of one place and purpose."""
        table: Table | None = rows
        rollout = self._rollout(bucket, purpose, is_after=is_after)
        if rollout is not None:
            table = rollout.fresh(rows, problems)
        else:
            self._fold.count(v.OMITTED, len(rows.rows), purpose.mode)
        for part in table.parts() if table else ():
            derived = self._count_kind(part, rollout, purpose.mode)
            if rollout is not None and bucket.trace is not None and bucket.trace.work and purpose == TRAINING:
                _tell(bucket.trace.work, bucket.key, part, derived)
            for reason, number in derived.problems.items():
                problems[reason] += number

    def _count_kind(self, table: Table, rollout: Rollout | None, mode: Labels) -> Derived:
        """Count rows that have the same labels."""
        derived: Derived = bulk.derive(table, state.first_ns, monotonic_ns())
        labels = self._words.labels(Request._make(table.rows[0]), mode)
        self._derived.setdefault(labels, []).append(derived)
        self._waiting += len(table.rows)
        if self._waiting >= TOGETHER:
            self._count_derived()
        found = outcomes(table)
        self._count_outcomes(table, found, labels)
        if rollout is not None:
            for kind, number in found.items():
                rollout.outcomes[kind] += number
            rollout.add(table, derived, labels)
        return derived

    def _count_derived(self) -> None:
        """Count what waits in the histograms that it belongs to."""
        waiting, self._derived, self._waiting = self._derived, {}, 0
        for labels, some in waiting.items():
            columns = list(zip(*(derived.columns for derived in some), strict=True))
            *found, preemptions = bulk.histograms([columns[place] for place in COUNTED], self._bounds)
            for (name, _, _, unit), bins in zip(HISTOGRAMS, found, strict=True):
                if bins is not None:
                    self._fold.merge(name, labels, bins.counts, (bins.total * unit, bins.low * unit, bins.high * unit))
            if preemptions is not None:
                self._fold.count(v.PREEMPTIONS, preemptions.total, labels)

    def _count_outcomes(self, table: Table, found: dict[str, int], labels: Labels) -> None:
        count = self._fold.count
        for finish, number in table.finishes.items():
            count(v.REQUESTS, number, (*labels, (v.FINISH, self._words.word(v.FINISH, finish or "unknown"))))
        for kind, number in found.items():
            if OUTCOMES[kind][0]:
                count(OUTCOMES[kind][0], number, labels)
        if "error" in found:
            failures = Counter(row[ERROR] or "error" for row in table.rows if has_error(row))
            for failure, number in failures.items():
                count(v.REQUEST_ERRORS, number, (*labels, (v.FAILURE, self._words.word(v.FAILURE, failure))))

    def _bad(self, problems: Counter[str]) -> None:
        """Count requests with something that cannot be."""
        for reason, number in problems.items():
            if number:
                self._fold.count(v.BAD_REQUESTS, number, ((v.REASON, reason),))

    # --- rollouts -----------------------------------------------------------------------------------------------------

    def _rollout(self, bucket: Bucket, purpose: Purpose, *, is_after: bool) -> Rollout | None:
        """Find the rollout of requests; None where they have none, or where its step is over."""
        if bucket.trace is None or bucket.problem == "late":
            return None
        key = bucket.key, purpose, is_after
        rollout = self._rollouts.get(key)
        now = monotonic_ns()
        if rollout is None:
            is_stage = isinstance(bucket.key, Stage) and bucket.key.name in ROLLOUTS
            has_end = is_stage or (bool(bucket.trace.step) and not bucket.trace.is_phase)
            kind = {"is_stage": is_stage, "has_end": has_end, "is_judging": purpose.is_judging}
            rollout = Rollout(bucket.trace, self._policy, purpose.mode, **kind)
            rollout.begun = now
            self._rollouts[key] = rollout
        rollout.touched = now
        return rollout

    def ended(self, stage: Stage, spans: list[Span]) -> dict[str, Value]:
        """Say what the requests of a stage that has ended were, and add their spans; they come before it.

        With the container of a rank its step is over: what comes later is counted as late.
        """
        is_step = stage.name.startswith(CONTAINER)
        if not is_step and stage.name not in ROLLOUTS:
            return NOTHING
        self._reading.count()
        told = NOTHING
        wall = 0 if is_step else stage.ended - stage.began
        for rollout in self._taken(stage.trace if is_step else stage):  # the training's is the first
            found = self._close(rollout, spans, stage.end_ns, wall)
            told = told or found
        if is_step and stage.trace is not None:
            if v.ITERATION in (stage.attributes or {}):
                self._engines.step_over(stage.end_ns)
            _remember(self._over, stage.trace.trace_id, None)
        return told

    def _taken(self, key: Any) -> list[Rollout]:
        """Take out the rollouts of a stage or a step, of every purpose."""
        found = [self._rollouts.pop((key, purpose, False), None) for purpose in PURPOSES]
        return [rollout for rollout in found if rollout is not None]

    def sweep(self, opened: Collection[Any], late: Collection[Any], spans: list[Span], *, is_last: bool) -> None:
        """Close the rollouts that no stage will close any more.

        Args:
            opened: stages that were open before the records of this cycle were taken; none of them has been missed.
            late: stages that have ended and are not counted yet.
            spans: takes the spans.
            is_last: nothing comes behind.
        """
        self._reading.count()
        with guard("write the load of engines"):
            self._engines.emit(state.clock.anchor)
        now = monotonic_ns()
        quiet = sorted(self._rollouts, key=lambda key: self._rollouts[key].touched)
        surplus = set(quiet[: max(len(quiet) - MOST_ROLLOUTS, 0)])
        for key, rollout in list(self._rollouts.items()):
            is_after = isinstance(key[0], Stage) and key[0].ended and key[0] not in opened and key[0] not in late
            if is_last or is_after or key in surplus or _is_over(key[0], rollout, now):
                with guard("close a rollout"):
                    del self._rollouts[key]
                    if is_after:  # its stage has told what the rollout was
                        rollout.is_told = False
                        self._bad(Counter(after_rollout=rollout.count))
                    self._close(rollout, spans, rollout.touched + rollout.trace.anchor, 0)
                    if not rollout.has_end:
                        self._engines.rollout_over(state.now())
        self._count_derived()
        self._point_at()

    def _close(self, rollout: Rollout, spans: list[Span], time_ns: int, wall: int) -> dict[str, Value]:
        """Emit what a rollout's requests are together, and the spans of those that are kept."""
        made = self._spans(rollout) if rollout.trace.sampled else []
        spans.extend(made)
        omitted = rollout.count - len(made)
        self._fold.count(v.OMITTED, omitted, rollout.labels)
        if not rollout.is_told:
            return NOTHING
        trace_id, staged = rollout.trace.trace_id, self._staged.get(rollout.trace.trace_id, frozenset())
        if rollout.is_stage:
            _remember(self._staged, trace_id, staged | {rollout.labels})
        elif rollout.labels in staged:  # what over-sampling left over, say
            return NOTHING
        wall = wall or rollout.wall()
        numbers = rollout.numbers(wall)
        self._points(rollout, numbers, time_ns, wall)
        told: dict[str, Value] = {v.REQUEST_COUNT: rollout.count, v.REQUESTS_OMITTED: omitted, **numbers}
        told.update({OUTCOMES[kind][1]: number for kind, number in rollout.outcomes.items()})
        peak = self._engines.peak()
        if peak is not None:
            told[v.KV_PEAK_SPAN] = peak
        told.update(self._engines.bytes())
        return told

    def _points(self, rollout: Rollout, numbers: dict[str, float], time_ns: int, wall: int) -> None:
        point = self._fold.point
        point(Point(v.ROLLOUT_WALL, wall * NS, time_ns, rollout.labels))
        for key, value in numbers.items():
            if key in SHARES:
                point(Point(v.TAIL, value, time_ns, ((v.SLOWEST, SHARES[key]), *rollout.labels)))
            else:
                point(Point(v.ROLLOUT_BUBBLE, value, time_ns, rollout.labels))
        for kind in OUTCOMES if rollout.count else ():
            ratio = rollout.outcomes.get(kind, 0) / rollout.count
            point(Point(v.REQUEST_RATIO, ratio, time_ns, ((v.OUTCOME_KIND, kind), *rollout.labels)))

    def _spans(self, rollout: Rollout) -> list[Stage]:
        """Make the spans of the requests that are kept, as many as the step may still have; outside of steps, each."""
        trace_id = rollout.trace.trace_id
        used = self._used.get(trace_id, 0) if rollout.has_end else 0
        chosen = [kept for kept in rollout.chosen(self._policy.total - used) if kept.numbers.ended]
        made = [request_span(kept) for kept in chosen]
        if rollout.trace.known:
            for kept, span in zip(chosen, made, strict=True):
                self._telling.setdefault(kept.labels, []).append((kept.numbers, span))
        if rollout.has_end:
            _remember(self._used, trace_id, used + len(made))
        return made

    def _point_at(self) -> None:
        """Let the histograms point at the spans that were made, between two boundaries at the last of its requests."""
        telling, self._telling = self._telling, {}
        for labels, told in telling.items():
            for place, (name, _, bounds, unit) in zip(PLACES, HISTOGRAMS, strict=True):
                last = {bisect_left(bounds, one[0][place]): one for one in told if one[0][place] >= 0}
                for numbers, span in last.values():
                    exemplar = Exemplar(span.end_ns, numbers[place] * unit, span.trace_id, span.span_id)
                    self._fold.exemplar(name, labels, exemplar)


def _tell(work: Any, key: Any, table: Table, derived: Derived) -> None:
    """Tell a step without a framework its tokens; what resumes a request that failed has its tokens in the prompt."""
    rollout = key.span_id if isinstance(key, Stage) and key.name in ROLLOUTS else 0
    for row, prompt, response in zip(table.rows, derived.columns.input, derived.columns.output, strict=True):
        if not is_failed(row):
            work.add_request(rollout, row[TURN], prompt, response)


def _is_over(key: Any, rollout: Rollout, now: int) -> bool:
    """Whether a rollout is over that no stage of this process closes: none has come for long."""
    if isinstance(key, Stage) and key.ended:  # it will be counted in a moment
        return False
    container = tracing.container
    goes_on = container is not None and container in tracing.open and container.trace is key
    if rollout.has_end and (goes_on or key in tracing.open):
        return False
    return now - rollout.touched > QUIET_NS or now - rollout.begun > LONG_NS


def _remember(known: OrderedDict[int, Any], trace_id: int, value: Any) -> None:
    known[trace_id] = value
    known.move_to_end(trace_id)
    while len(known) > KEPT_TRACES:
        known.popitem(last=False)
