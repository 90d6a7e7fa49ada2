"""Lines of the loop, the rollout and the update of each step, made of the numbers whose times fall into the step.

The process that emits the root of a step has its three lines. Another one has a line of the loop where a user recorded
numbers of his own there. Every process has the records of its own samples.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from math import isfinite
from typing import Any, Final

from otel_rl import vocabulary as v
from otel_rl.clock import monotonic, monotonic_ns
from otel_rl.guard import say
from otel_rl.layers.kept_samples import StepSamples, mean_and_spread, quantiles
from otel_rl.layers.memory import layering
from otel_rl.layers.sample_records import Redaction, records_of
from otel_rl.metrics.record import Fold
from otel_rl.probes import deferred
from otel_rl.process.state import Trace, state
from otel_rl.records import Attributes, Count, Log, Point, Span, Value
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage

ROLLOUTS: Final = (v.SAMPLE, v.SAMPLE_SUBMIT)
UPDATING: Final = (v.TRAIN, v.OPTIMIZER)
"""Stages that lines belong to: the last one of the first kind that the step has."""
OF_LOOP: Final = (v.EPOCH, v.LEARNING_RATE, v.EVAL_REWARD)
OF_ROLLOUT: Final = (
    v.REWARD_SCORE, v.REWARD_STD, v.REWARD_ZERO_STD, v.FUNCTION_SCORE, v.FUNCTION_STD, v.REWARD_NONFINITE,
    v.KL_REFERENCE, v.RESPONSE_LENGTH, v.RESPONSE_MIN, v.RESPONSE_MAX, v.RESPONSE_CLIPPED, v.SAMPLE_LAG,
    v.SAMPLE_LAG_MAX, v.SAMPLE_STALE,
)  # fmt: skip
OF_UPDATE: Final = (
    v.LOSS, v.LOSS_TERM, v.GRAD_NORM, v.ENTROPY, v.KL_REFERENCE, v.KL_POLICY, v.CLIP_FRACTION,
    v.CLIP_SIDE_FRACTION,
)  # fmt: skip
WANTED: Final = frozenset((*OF_LOOP, *OF_ROLLOUT, *OF_UPDATE))
NARROWING: Final = (v.LOSS_TYPE, v.CLIP_SIDE, v.REWARD_FUNCTION)
"""Labels whose value follows a metric's name in the key of its value."""
COUNTED: Final = (v.SAMPLE_BATCH_SIZE, v.REQUESTS_ABORTED, v.REQUESTS_TIMED_OUT, v.REQUESTS_CLIPPED, v.REQUESTS_FAILED)
"""Attributes of rollouts whose sum a line has."""
ENDINGS: Final = {
    v.REQUESTS_ABORTED: "abort", v.REQUESTS_TIMED_OUT: "timeout", v.REQUESTS_CLIPPED: "length",
    v.REQUESTS_FAILED: "error",
}  # fmt: skip
MOST_POINTS: Final = 1_000
"""Points of one number that wait for the end of their step; of more the last ones."""
MOST_NUMBERS: Final = 2_000
MOST_STAGES: Final = 1_000
MOST_TRACES: Final = 256
SETTLED_NS: Final = 2_000_000_000
"""Samples of a process without a container are recorded when no other has come for so long."""
NOTHING: Final[Mapping[str, Value]] = {}


class RateLimit:
    """A bound on records: so many a second, and at once as many as in ten seconds.

    Args:
        per_second: how many.
        what: of which records, for the line that is logged once.
    """

    def __init__(self, per_second: float, what: str) -> None:
        self._per_second, self._what = per_second, what
        self._left, self._at = 10 * per_second, monotonic()

    def take(self, number: int) -> int:
        """Return how many of a number of records may be written; count the others."""
        now = monotonic()
        self._left = min(10 * self._per_second, self._left + (now - self._at) * self._per_second)
        self._at = now
        allowed = min(number, int(self._left))
        self._left -= allowed
        if allowed < number:
            if not state.dropped["logs", "too_fast"]:
                say("otel_rl: %s come too fast; some are left out and counted", self._what)
            state.drop("logs", "too_fast", number - allowed)
        return allowed


class StepNumbers:
    """The numbers of open steps, by the key that they have in a line; used by the flusher only."""

    def __init__(self, fold: Fold) -> None:
        self._fold = fold
        self._read: dict[str, tuple[list[Point], int]] = {}
        """The points of each metric that wait in the fold, and how many of them have been read."""
        self._points: dict[str, deque[tuple[int, float, bool]]] = {}
        """Time, value, and whether it is of all ranks together."""

    def collect(self) -> None:
        """Read the points that have come since the last call, and before the fold hands them on."""
        read: dict[str, tuple[list[Point], int]] = {}
        for name, points in self._fold.waiting.items():
            if name in WANTED or name.startswith(v.USER):
                known, before = self._read.get(name, (None, 0))
                for point in points[before if known is points else 0 :]:
                    self._add(point)
                read[name] = points, len(points)
        self._read = read

    def _add(self, point: Point) -> None:
        labels = dict(point.labels)
        if labels.get(v.MODE) == "eval" and point.name != v.EVAL_REWARD:
            return
        key = ".".join([point.name, *(str(labels[label]) for label in NARROWING if label in labels)])
        listed = self._points.get(key)
        if listed is None:
            if len(self._points) >= MOST_NUMBERS:
                state.drop("logs", "too_many_numbers")
                return
            listed = self._points[key] = deque(maxlen=MOST_POINTS)
        listed.append((point.time_ns, point.value, labels.get(v.SCOPE_KEY) == "global"))

    def of(self, start_ns: int, end_ns: int) -> dict[str, float]:
        """Return the last value of each number in a step; forget it, and what is older."""
        found: dict[str, float] = {}
        for key, points in list(self._points.items()):
            inside = [point for point in points if start_ns < point[0] <= end_ns]
            chosen = [point for point in inside if point[2]] or inside
            if chosen:
                found[key] = chosen[-1][1]
            later = [point for point in points if point[0] > end_ns]
            if not later:
                del self._points[key]
            elif len(later) < len(points):
                self._points[key] = deque(later, MOST_POINTS)
        return found


class StepLines:
    """Makes the log layers of steps that are over; used by the flusher only."""

    def __init__(self, fold: Fold) -> None:
        self._numbers = StepNumbers(fold)
        self._stages: dict[Trace, list[Stage]] = {}
        """Stages of open steps that a line says something of."""
        self._waiting: dict[Trace, Stage] = {}
        """Containers that are over; numbers of their devices are still on their way."""
        self._began: dict[Value, int] = {}
        """When each loop began, ns since 1970."""
        self._redaction = Redaction(state.config.redact)
        self._line_rate = RateLimit(150, "lines of steps")
        self._sample_rate = RateLimit(max(1_000, state.config.sample_records), "records of samples")

    # --- as a completer -----------------------------------------------------------------------------------------------

    def concerns(self, name: str) -> bool:
        """Return whether a line may say something of stages with this name."""
        return name in (*ROLLOUTS, *UPDATING) or name.startswith(v.CONTAINER)

    def complete(self, stage: Stage, spans: list[Span]) -> Mapping[str, Value]:
        """Keep a stage until its step is over; that is when all numbers have come that are on their way now."""
        trace = stage.trace
        if trace is None or trace.is_carried:  # its lines are another process's
            return NOTHING
        if stage.name.startswith(v.CONTAINER):
            self._waiting[trace] = stage
            deferred.follow(partial(self._over, trace))
        else:
            if len(self._stages) >= MOST_TRACES and trace not in self._stages:
                self._stages.pop(next(iter(self._stages)))
            stages = self._stages.setdefault(trace, [])
            if len(stages) < MOST_STAGES:
                stages.append(stage)
        return NOTHING

    # --- what becomes records -----------------------------------------------------------------------------------------

    def fold(self, *, is_asked: bool, is_last: bool) -> Iterator[Log | Count | Point]:
        """Read what came in this cycle; return what waits for no container, and all that need not wait.

        Args:
            is_asked: somebody waits for what was recorded: numbers that are still on their way come too late.
            is_last: nothing may wait any more.
        """
        self._numbers.collect()
        for trace in tuple(self._waiting) if is_asked or is_last else ():
            if trace.known or is_last:
                yield from self._end(trace)
        if not layering.samples:
            return
        open_traces = {stage.trace for stage in tracing.open.copy() if stage.name.startswith(v.CONTAINER)}
        awaited, now = {*open_traces, *self._waiting}, monotonic_ns()
        for trace, samples in tuple(layering.samples.items()):
            if is_last or (trace not in awaited and now - samples.touched_ns > SETTLED_NS):
                del layering.samples[trace]
                layering.numbers.pop(trace, None)
                yield from self._records(samples, trace, _step_of(trace))

    def _over(self, trace: Trace, _: list[float]) -> Iterator[Log | Count | Point]:
        """End a step whose numbers have come, once its ids are known."""
        if trace.known:
            yield from self._end(trace)
        elif trace in self._waiting:
            deferred.follow(partial(self._over, trace))

    def _end(self, trace: Trace) -> Iterator[Log | Count | Point]:
        container = self._waiting.pop(trace, None)
        if container is None:
            return
        stages, said = self._stages.pop(trace, []), layering.said.pop(trace, {})
        samples, own = layering.samples.pop(trace, None), layering.numbers.pop(trace, None)
        of_step = _of_step(container)
        if trace.is_step:
            self._numbers.collect()
            numbers = self._numbers.of(container.start_ns, container.end_ns) | said
            lines = list(self._lines(container, stages, numbers, samples))
            yield from lines[: self._line_rate.take(len(lines))]
            if samples is not None and own is not None and own.count == samples.count - samples.evaluated:
                # else a framework has samples of its own
                yield from own.points(numbers, container.end_ns)
        if samples is not None:
            yield from self._records(samples, trace, of_step)

    def _records(self, samples: StepSamples, trace: Trace, of_step: Attributes) -> Iterator[Log | Count]:
        allowed = self._sample_rate.take(min(samples.count, samples.limit)) if trace.sampled else 0
        return records_of(samples, trace, of_step, self._redaction, allowed)

    def _lines(
        self, container: Stage, stages: list[Stage], numbers: Mapping[str, Value], samples: StepSamples | None
    ) -> Iterator[Log]:
        of_step, number = _of_step(container), (container.attributes or {}).get(v.ITERATION)
        has_root = state.identity.emits_root or bool(tracing.sibling)
        of_loop = {key: numbers[key] for key in sorted(numbers) if key.startswith((*OF_LOOP, v.USER))}
        if not has_root and not any(key.startswith(v.USER) for key in of_loop):
            return
        end_ns, step_s = container.end_ns, (container.end_ns - container.start_ns) / 1e9
        began = self._began.setdefault(of_step.get(v.LOOP_NAME, ""), container.start_ns)
        times: dict[str, Value] = {v.STEP_SECONDS: step_s, v.ELAPSED: (end_ns - began) / 1e9}
        failed = (container.attributes or {}).get(v.ERROR_TYPE)
        if failed is not None:
            times[v.ERROR_TYPE] = failed
        span_id = container.parent_id if has_root else container.span_id
        body = f"step {number}: {step_s:.4g} s" + "".join(_shown(of_loop, OF_LOOP)) + (f", {failed}" if failed else "")
        yield _line(v.LOOP_LINE, container, {**of_step, **times, **of_loop}, body, span_id)
        if not has_root:
            return
        rollouts, updates = (_of_kinds(stages, kinds) for kinds in (ROLLOUTS, UPDATING))
        rollout = _rollout(rollouts, numbers, samples)
        if rollout.keys() - {v.KL_REFERENCE}:  # a step may train again on the samples of an earlier one
            body = f"rollout of step {number}" + "".join(_shown(rollout, (v.SAMPLE_BATCH_SIZE, *OF_ROLLOUT)))
            made = rollouts[-1].span_id if rollouts else span_id
            yield _line(v.ROLLOUT_LINE, container, {**of_step, **rollout}, body, made)
        update = _update(stages, updates, numbers)
        if update:
            body = f"update of step {number}" + "".join(_shown(update, OF_UPDATE))
            made = updates[-1].span_id if updates else span_id
            yield _line(v.UPDATE_LINE, container, {**of_step, **update}, body, made)


def _line(event: str, container: Stage, attributes: Attributes, body: str, span_id: int) -> Log:
    trace_id, severity = container.trace_id, 17 if container.status is not None and event == v.LOOP_LINE else 9
    return Log(event, container.end_ns, attributes, body, severity, trace_id, span_id)


def _of_step(container: Stage) -> dict[str, Value]:
    said = container.attributes or {}
    return {key: said[key] for key in (v.LOOP_NAME, v.ITERATION, v.LOOP_RESTART_OF) if key in said}


def _step_of(trace: Trace) -> dict[str, Value]:
    """Return which step the samples of a process without a container belong to."""
    loop, _, number = trace.step.rpartition(" ")
    return {v.LOOP_NAME: loop, v.ITERATION: int(number)} if trace.is_step else {}


def _of_kinds(stages: Iterable[Stage], kinds: tuple[str, ...]) -> list[Stage]:
    """Return the stages of the first kind that there are, those of a training alone."""
    found = [one for one in stages if (one.attributes or {}).get(v.MODE) != "eval"]
    found = [one for one in found if (one.attributes or {}).get(v.TRAIN_MODEL) != "critic"] or found
    return next(filter(None, ([one for one in found if one.name == kind] for kind in kinds)), [])


def _rollout(rollouts: list[Stage], numbers: Mapping[str, Value], samples: StepSamples | None) -> dict[str, Value]:
    """Return what a step generated: the framework's numbers, and what this process's own samples say beyond them."""
    found: dict[str, Value] = {key: numbers[key] for key in sorted(numbers) if key.startswith(OF_ROLLOUT)}
    for key in COUNTED:
        counts: list[Any] = [(one.attributes or {})[key] for one in rollouts if key in (one.attributes or {})]
        if counts:
            found[key] = sum(counts)
    if samples is None:
        return found
    if samples.evaluated == samples.count:
        return found
    known: dict[str, Value] = {v.SAMPLE_BATCH_SIZE: samples.count - samples.evaluated}
    known |= {key: samples.finishes[word] for key, word in ENDINGS.items() if word in samples.finishes}
    rewards, lengths = samples.rewards, samples.lengths
    if rewards:
        known |= dict(zip((v.REWARD_SCORE, v.REWARD_STD), mean_and_spread(rewards), strict=True))
    if lengths:
        known |= {
            v.RESPONSE_LENGTH: sum(lengths) / len(lengths),
            v.RESPONSE_MIN: min(lengths),
            v.RESPONSE_MAX: max(lengths),
        }
        found[v.RESPONSE_QUANTILES] = quantiles(lengths)
    return {**known, **found}


def _update(stages: list[Stage], updates: list[Stage], numbers: Mapping[str, Value]) -> dict[str, Value]:
    found: dict[str, Value] = {key: numbers[key] for key in sorted(numbers) if key.startswith(OF_UPDATE)}
    steps = [one for one in stages if one.name == v.OPTIMIZER]
    if steps:
        skipped = sum(bool((one.attributes or {}).get(v.OPTIMIZER_SKIPPED)) for one in steps)
        found |= {v.UPDATES: len(steps) - skipped, v.UPDATES_SKIPPED: skipped}
    return found


def _shown(numbers: Mapping[str, Value], names: Iterable[str]) -> Iterator[str]:
    """Yield the numbers of a line as its text has them: by the last words of their names."""
    for name in names:
        value = numbers.get(name)
        if isinstance(value, float | int):
            text = f"{value:.4g}" if isfinite(value) else str(value)
            yield f", {name.partition('.')[2].replace('.', ' ').replace('_', ' ')} {text}"
