"""Folds finished requests into metrics, and gives the spans of a rollout once it is over; used by the flusher only."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, Final

from otel_rl import vocabulary as v
from otel_rl.clock import monotonic_ns
from otel_rl.guard import guard
from otel_rl.metrics.record import Fold
from otel_rl.process.state import state
from otel_rl.records import Exemplar, FinishedRequests, Labels, Point, Span, Value
from otel_rl.requests.engine_load import Engines
from otel_rl.requests.fields import ERROR, WHOLE, RequestNumbers, has_error, is_failed
from otel_rl.requests.labels import Words
from otel_rl.requests.measures import EXPONENTIAL, HISTOGRAMS, NS, OUTCOMES, SHARES
from otel_rl.requests.parents import PURPOSES, ROLLOUTS, TRAINING, Purpose, Stages, Uncounted, split_after
from otel_rl.requests.queue import EngineLoad, KvCache, Request
from otel_rl.requests.reader import RequestReader
from otel_rl.requests.rollout import RolloutRequests
from otel_rl.requests.sampling import Policy, outcomes
from otel_rl.requests.span import request_span
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage
from otel_rl.vocabulary import CONTAINER

if TYPE_CHECKING:
    from otel_rl.requests.columns import Derived, RequestBatch

TOGETHER: Final = 4_000
"""Requests whose numbers wait until they are counted in histograms at once, 96 bytes each."""
QUIET_NS: Final = 5_000_000_000
"""Requests outside of steps are one rollout until none has come for so long."""
LONG_NS: Final = 60_000_000_000
"""Such a rollout lasts so long at most."""
MOST_ROLLOUTS: Final = 64
"""Rollouts that are open at once; then the one that was quiet for longest is closed."""
KEPT_TRACES: Final = 256
"""Traces whose number of spans, and the end of whose step, are remembered."""
NOTHING: Final[dict[str, Value]] = {}


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
        self._bounds = EXPONENTIAL if fold.is_exponential else tuple(bounds for _, _, bounds, _ in HISTOGRAMS)
        self._engines = Engines(fold)
        self._words = Words()
        self._derived: dict[Labels, list[Derived]] = {}
        """What is not yet in histograms, by the labels of its series: most batches of a cycle are small."""
        self._num_derived = 0
        self._rollouts: dict[Any, RolloutRequests] = {}
        """Keys: the stage or step that is the rollout, or what joins traces of others; its purpose; and whether the
        requests ended after the stage, which is no rollout of its own."""
        self.stages = Stages()
        self._used: OrderedDict[int, int] = OrderedDict()
        """How many spans requests have become, by trace id."""
        self._over: OrderedDict[int, None] = OrderedDict()
        """Trace ids of the steps that have ended."""
        self._staged: OrderedDict[int, frozenset[Labels]] = OrderedDict()
        """The labels of each trace's requests in rollout stages, by trace id."""
        self._reader = RequestReader(self._count_all, self._bad, self._over)
        self._exemplars: dict[Labels, list[tuple[RequestNumbers, Stage]]] = {}
        """Requests of this cycle that became spans, by the labels of their series: exemplars point at the last ones."""

    # --- as requests come in ------------------------------------------------------------------------------------------

    def load(self, load: EngineLoad) -> None:
        """Fold how busy an engine is."""
        self._engines.add_load(load)

    def kv_cache(self, cache: KvCache) -> None:
        """Fold how many bytes an engine's KV cache takes."""
        self._engines.add_cache(cache)

    def remember(self, *stages: Collection[Any]) -> None:
        """Remember the stages among what is open or has ended, before requests below them are counted."""
        for some in stages:
            self.stages.remember(some)

    def read(self, finished: FinishedRequests, *, hurry: bool) -> None:
        """Read finished requests; see ``RequestReader.read``. Cost: 3 us a request and the reader's own."""
        self._reader.read(finished, hurry=hurry)

    def _count_all(self, uncounted: Iterable[Uncounted]) -> None:
        self.stages.remember(tracing.open.copy())
        for some in uncounted:
            with guard("count requests"):
                self._count(some)

    def _count(self, some: Uncounted) -> None:
        """Count what belongs together, purpose by purpose."""
        from otel_rl.requests.columns import make_batch

        problems: Counter[str] = Counter()
        batch = make_batch(some.values, some.parents(), problems)
        if batch is not None:
            if some.problem:
                problems[some.problem] += len(batch.values)
            purposes = self.stages.purposes(set(batch.parents))
            for purpose in sorted(set(purposes.values())):
                with guard("count requests"):
                    places = [place for place, parent in enumerate(batch.parents) if purposes[parent] == purpose]
                    part = batch if len(places) == len(batch.values) else batch.only(places)
                    for split, is_after in split_after(some.key, part):
                        self._count_purpose(some, split, purpose, problems, is_after=is_after)
        self._bad(problems)

    def _count_purpose(
        self, some: Uncounted, batch: RequestBatch, purpose: Purpose, problems: Counter[str], *, is_after: bool
    ) -> None:
        """Count requests of one rollout and purpose."""
        fresh: RequestBatch | None = batch
        rollout = self._rollout(some, purpose, is_after=is_after)
        if rollout is not None:
            fresh = rollout.fresh(batch, problems)
        else:
            self._fold.count(v.OMITTED, len(batch.values), purpose.mode)
        for part in fresh.parts() if fresh else ():
            derived = self._count_kind(part, rollout, purpose.mode)
            if rollout is not None and some.trace is not None and some.trace.work and purpose == TRAINING:
                _add_work(some.trace.work, some.key, part, derived)
            problems.update(derived.problems)

    def _count_kind(self, batch: RequestBatch, rollout: RolloutRequests | None, mode: Labels) -> Derived:
        """Count requests that have the same labels."""
        derived = batch.derive(state.first_ns, monotonic_ns())
        labels = self._words.labels(Request._make(batch.values[0]), mode)
        self._derived.setdefault(labels, []).append(derived)
        self._num_derived += len(batch.values)
        if self._num_derived >= TOGETHER:
            self._count_derived()
        found = outcomes(batch)
        self._count_outcomes(batch, found, labels)
        if rollout is not None:
            rollout.outcomes.update(found)
            rollout.is_end_known &= not batch.has_unknown_end
            rollout.add(batch, derived, labels)
        return derived

    def _count_derived(self) -> None:
        """Count what is pending in its histograms."""
        if not self._derived:
            return
        from otel_rl.requests.columns import bins, joined

        pending, self._derived, self._num_derived = self._derived, {}, 0
        for labels, some in pending.items():
            columns = joined(some)
            for (name, column, _, unit), bounds in zip(HISTOGRAMS, self._bounds, strict=True):
                found = bins(getattr(columns, column), bounds)
                if found is not None:
                    summary = found.total * unit, found.low * unit, found.high * unit
                    self._fold.merge(name, labels, found.counts, summary)
            preemptions = columns.preemptions
            if preemptions.max() >= 0:
                self._fold.count(v.PREEMPTIONS, int(preemptions.clip(0).sum()), labels)

    def _count_outcomes(self, batch: RequestBatch, found: dict[str, int], labels: Labels) -> None:
        count = self._fold.count
        for finish, number in batch.finishes.items():
            count(v.REQUESTS, number, (*labels, (v.FINISH, self._words.word(v.FINISH, finish or "unknown"))))
        for kind, number in found.items():
            if OUTCOMES[kind][0]:
                count(OUTCOMES[kind][0], number, labels)
        if "error" in found:
            failures = Counter(one[ERROR] or "error" for one in batch.values if has_error(one))
            for failure, number in failures.items():
                count(v.REQUEST_ERRORS, number, (*labels, (v.FAILURE, self._words.word(v.FAILURE, failure))))

    def _bad(self, problems: Counter[str]) -> None:
        """Count requests with something that cannot be."""
        for reason, number in problems.items():
            if number:
                self._fold.count(v.BAD_REQUESTS, number, ((v.REASON, reason),))

    # --- rollouts -----------------------------------------------------------------------------------------------------

    def _rollout(self, some: Uncounted, purpose: Purpose, *, is_after: bool) -> RolloutRequests | None:
        """Find the rollout of requests; None where they have none, or where its step is over."""
        if some.trace is None or some.problem == "late":
            return None
        key = some.key, purpose, is_after
        rollout = self._rollouts.get(key)
        now = monotonic_ns()
        if rollout is None:
            is_stage = isinstance(some.key, Stage) and some.key.name in ROLLOUTS
            has_end = is_stage or (bool(some.trace.step) and not some.trace.is_phase)
            kind = {"is_stage": is_stage, "has_end": has_end, "is_judging": purpose.is_judging}
            rollout = RolloutRequests(some.trace, self._policy, purpose.mode, **kind)
            rollout.begun = now
            self._rollouts[key] = rollout
        rollout.touched = now
        return rollout

    def ended(self, stage: Stage, spans: list[Span]) -> dict[str, Value]:
        """Return what the requests of a stage that has ended were, and add their spans; they come before it.

        A rank's step is over with its container: what comes after that is counted as late.
        """
        is_step = stage.name.startswith(CONTAINER)
        if not is_step and stage.name not in ROLLOUTS:
            return NOTHING
        self._reader.count()
        attributes = NOTHING
        wall = 0 if is_step else stage.ended - stage.began
        for rollout in self._pop_rollouts(stage.trace if is_step else stage):  # the training's is the first
            found = self._close(rollout, spans, stage.end_ns, wall)
            attributes = attributes or found
        if is_step and stage.trace is not None:
            if v.ITERATION in (stage.attributes or {}):
                self._engines.step_over(stage.end_ns)
            _remember(self._over, stage.trace.trace_id, None)
        return attributes

    def _pop_rollouts(self, key: Any) -> list[RolloutRequests]:
        """Remove the rollouts of a stage or a step, of every purpose."""
        found = [self._rollouts.pop((key, purpose, False), None) for purpose in PURPOSES]
        return [rollout for rollout in found if rollout is not None]

    def sweep(self, opened: Collection[Any], late: Collection[Any], spans: list[Span], *, is_last: bool) -> None:
        """Close the rollouts that no stage will close any more.

        Args:
            opened: stages that were open before the records of this cycle were taken; none of them has been missed.
            late: stages that have ended and are not counted yet.
            spans: takes the spans.
            is_last: nothing follows.
        """
        self._reader.count()
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
                    if is_after:  # its stage says what the rollout was
                        rollout.is_reported = False
                        self._bad(Counter(after_rollout=rollout.count))
                    self._close(rollout, spans, rollout.touched + rollout.trace.anchor, 0)
                    if not rollout.has_end:
                        self._engines.rollout_over(state.now())
        self._count_derived()
        self._add_exemplars()

    def _close(self, rollout: RolloutRequests, spans: list[Span], time_ns: int, wall: int) -> dict[str, Value]:
        """Emit what a rollout's requests are together, and the spans of those that are kept."""
        made = self._spans(rollout) if rollout.trace.sampled else []
        spans.extend(made)
        omitted = rollout.count - len(made)
        self._fold.count(v.OMITTED, omitted, rollout.labels)
        if not rollout.is_reported:
            return NOTHING
        trace_id, staged = rollout.trace.trace_id, self._staged.get(rollout.trace.trace_id, frozenset())
        if rollout.is_stage:
            _remember(self._staged, trace_id, staged | {rollout.labels})
        elif rollout.labels in staged:  # what over-sampling left over, say
            return NOTHING
        wall = wall or rollout.wall()
        numbers = rollout.numbers(wall)
        self._points(rollout, numbers, time_ns, wall)
        attributes: dict[str, Value] = {v.REQUEST_COUNT: rollout.count, v.REQUESTS_OMITTED: omitted, **numbers}
        attributes.update({OUTCOMES[kind][1]: number for kind, number in rollout.outcomes.items()})
        peak = self._engines.peak()
        if peak is not None:
            attributes[v.KV_PEAK_SPAN] = peak
        attributes.update(self._engines.bytes())
        return attributes

    def _points(self, rollout: RolloutRequests, numbers: dict[str, float], time_ns: int, wall: int) -> None:
        point = self._fold.point
        point(Point(v.ROLLOUT_WALL, wall * NS, time_ns, rollout.labels))
        for key, value in numbers.items():
            if key in SHARES:
                point(Point(v.TAIL, value, time_ns, ((v.SLOWEST, SHARES[key]), *rollout.labels)))
            else:
                point(Point(v.ROLLOUT_BUBBLE, value, time_ns, rollout.labels))
        for kind in OUTCOMES if rollout.count else ():
            if kind == "clipped" and not rollout.is_end_known:
                continue
            ratio = rollout.outcomes.get(kind, 0) / rollout.count
            point(Point(v.REQUEST_RATIO, ratio, time_ns, ((v.OUTCOME_KIND, kind), *rollout.labels)))

    def _spans(self, rollout: RolloutRequests) -> list[Stage]:
        """Make the spans of the requests that are kept, as many as the step may still have; outside of steps, each."""
        trace_id = rollout.trace.trace_id
        used = self._used.get(trace_id, 0) if rollout.has_end else 0
        chosen = [kept for kept in rollout.chosen(self._policy.total - used) if kept.numbers.ended]
        made = [request_span(kept) for kept in chosen]
        if rollout.trace.known:
            for kept, span in zip(chosen, made, strict=True):
                self._exemplars.setdefault(kept.labels, []).append((kept.numbers, span))
        if rollout.has_end:
            _remember(self._used, trace_id, used + len(made))
        return made

    def _add_exemplars(self) -> None:
        """Point the histograms at the spans that were made: each bucket at the last of its requests."""
        exemplars, self._exemplars = self._exemplars, {}
        for labels, some in exemplars.items():
            for name, column, bounds, unit in HISTOGRAMS:
                values = ((getattr(numbers, column), span) for numbers, span in some)
                last = {bisect_left(bounds, value): (value, span) for value, span in values if value >= 0}
                for value, span in last.values():
                    self._fold.exemplar(name, labels, Exemplar(span.end_ns, value * unit, span.trace_id, span.span_id))


def _add_work(work: Any, key: Any, batch: RequestBatch, derived: Derived) -> None:
    """Add tokens to a step without a framework; a request that resumes a failed one has its tokens in the prompt."""
    rollout = key.span_id if isinstance(key, Stage) and key.name in ROLLOUTS else 0
    numbers = batch.numbers[WHOLE.index("turn")], derived.columns.input, derived.columns.output
    for one, *counts in zip(batch.values, *(column.tolist() for column in numbers), strict=True):
        if not is_failed(one):
            work.add_request(rollout, *counts)


def _is_over(key: Any, rollout: RolloutRequests, now: int) -> bool:
    """Return whether a rollout that no stage of this process closes is over: no request has come for long."""
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
