"""Samples and tokens of a loop without a framework, from its stages and requests; used by the flusher only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from otel_rl import vocabulary as v
from otel_rl.process.state import Trace, state
from otel_rl.records import Count, Deferred, Point
from otel_rl.trace.stage import Stage
from otel_rl.trace.throughput import ENVIRONMENT, PADDING, PROMPT, RESPONSE, ROLLOUT, TRAIN, Rates, WorkDone

WORKING: Final = frozenset((v.SAMPLE, v.FORWARD, v.TRAIN))
"""Stages that may have samples and tokens."""
KINDS: Final = (v.TOKENS_PROMPT, v.TOKENS_RESPONSE, v.TOKENS_ENVIRONMENT, v.TOKENS_PADDING)
NAMES: Final = frozenset((*KINDS, v.TOKENS, v.SAMPLE_BATCH_SIZE, v.BATCH_SIZE))
NO_TURN: Final = -1
FAILED: Final = 2
"""OTLP's status code of an error."""
WHOLE_LIMIT: Final = 1 << 53
"""A count beyond that is none."""
Numbers = dict[str, int]
"""What is known, by the name of the attribute. ``rl.tokens`` is only there without prompts and responses, and leaves
out the tokens of an environment."""


@dataclass(slots=True)
class _Working:
    """One stage: its numbers, and the ids of the spans that it is in."""

    numbers: Numbers
    parents: frozenset[int] = frozenset()


@dataclass(slots=True)
class _Requests:
    """Requests that belong to one rollout."""

    response: int | None = None
    firsts: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    """The number of requests and their prompt tokens, by turn: the prompt of a turn repeats the earlier ones."""

    def numbers(self) -> Numbers:
        """Return samples and prompts of the first turn, responses of all turns."""
        first = min((turn for turn in self.firsts if turn != NO_TURN), default=NO_TURN)
        found = [self.firsts[turn] for turn in {NO_TURN, first} & self.firsts.keys()]
        numbers = {
            v.SAMPLE_BATCH_SIZE: sum(samples for samples, _ in found) or None,
            v.TOKENS_PROMPT: _sum(prompt for _, prompt in found),
            v.TOKENS_RESPONSE: self.response,
        }
        return {name: number for name, number in numbers.items() if number is not None}


class StepWork:
    """The work of one step of one rank, evaluations left out.

    Each token counts once: of rollout stages inside one another the outer one counts as far as it has a number, of
    requests what no rollout stage has. Training counts each forward, or the stage that it is in if no forward counts.
    """

    __slots__ = ("_requests", "_stages")

    def __init__(self) -> None:
        self._stages: dict[str, dict[int, _Working]] = {name: {} for name in WORKING}
        self._requests: dict[int, _Requests] = {}
        """Keys are the ids of the rollout stages that they belong to; 0 for those of other stages and of the step."""

    def add(self, stage: Stage, parents: Iterable[int]) -> None:
        """Add a stage that has ended; one that failed does not count, since it may be tried again."""
        attributes = stage.attributes or {}
        if (stage.status or (0,))[0] != FAILED and v.TRUNCATED not in attributes:
            numbers = _numbers(attributes, is_training=stage.name != v.SAMPLE)
            self._stages[stage.name][stage.span_id] = _Working(numbers, frozenset(parents))

    def add_request(self, rollout: int, turn: int, prompt: int, response: int) -> None:
        """Add a finished sequence; a number below 0 is not known."""
        found = self._requests.setdefault(rollout, _Requests())
        samples, prompts = found.firsts.get(turn, (0, None))
        found.firsts[turn] = samples + 1, _sum((prompts, prompt if prompt >= 0 else None))
        found.response = _sum((found.response, response if response >= 0 else None))

    @property
    def has_rollout(self) -> bool:
        """Return whether anything was generated for training."""
        return bool(self._stages[v.SAMPLE] or self._requests)

    @property
    def has_training(self) -> bool:
        """Return whether anything was trained."""
        return bool(self._stages[v.FORWARD] or self._stages[v.TRAIN])

    def rollout(self) -> Numbers:
        """Return the numbers of all rollouts."""
        stages = dict(self._stages[v.SAMPLE])
        for span_id, requests in self._requests.items():
            if span_id:
                stage = stages.get(span_id, _Working({}))
                stages[span_id] = _Working(_completed(stage.numbers, requests.numbers()), stage.parents)
        numbers = _outer(stages)
        return _completed(numbers, self._requests[0].numbers()) if 0 in self._requests else numbers

    def training(self) -> Numbers:
        """Return the numbers of all forwards."""
        numbers = _outer(self._stages[v.FORWARD])
        return numbers if v.TOKENS_RESPONSE in numbers else _outer(self._stages[v.TRAIN])


class OwnLoop:
    """Counts the work of one loop of ``otel_rl.step``, as ``Throughput`` counts that of a trainer."""

    def __init__(self) -> None:
        self._rates = Rates()
        self._counted: set[tuple[str, str]] = set()
        """Which numbers the loop has had so far; the others have no rates."""

    def begin_step(self, trace: Trace) -> None:
        """Collect the work of a step."""
        trace.work = StepWork()

    def end_step(self, trace: Trace, begin: int, end: int) -> None:
        """Record the work of the step from ``begin`` to ``end`` (monotonic, ns)."""
        if trace.work is not None:
            state.add(Deferred(self._end_step, (trace.work, trace.anchor, begin, end)))

    def _end_step(self, work: StepWork, anchor: int, begin: int, end: int) -> Iterator[Count | Point]:
        rollout, training = work.rollout(), work.training()
        if v.SAMPLE_BATCH_SIZE in rollout:
            yield Count(v.SAMPLES, rollout[v.SAMPLE_BATCH_SIZE])
        for tokens, numbers in ((v.SAMPLE_TOKENS, rollout), (v.TRAIN_TOKENS, training)):
            for kind, labels in zip(KINDS, (PROMPT, RESPONSE, ENVIRONMENT, PADDING), strict=True):
                if numbers.get(kind) and (kind != v.TOKENS_PADDING or tokens == v.TRAIN_TOKENS):
                    yield Count(tokens, numbers[kind], labels)
        nothing = None if work.has_rollout else 0
        done = WorkDone(
            rollout.get(v.SAMPLE_BATCH_SIZE, nothing),
            _computed(rollout, nothing),
            training.get(v.TOKENS_RESPONSE, None if work.has_training else 0),
        )
        kinds = ((v.SAMPLES_RATE, ROLLOUT[1]), (v.TOKENS_RATE, ROLLOUT[1]), (v.TOKENS_RATE, TRAIN[1]))
        self._counted.update(kind for kind, number in zip(kinds, done, strict=True) if number)
        for point in self._rates.step(begin, end, anchor, done, has_rollout=work.has_rollout):
            if (point.name, str(dict(point.labels)[v.WORK])) in self._counted:
                yield point


def _computed(numbers: Numbers, otherwise: int | None) -> int | None:
    """Return the tokens of prompts and responses together, or ``otherwise`` if responses are not known."""
    if v.TOKENS in numbers or v.TOKENS_RESPONSE in numbers:
        return sum(numbers.get(name, 0) for name in (v.TOKENS, v.TOKENS_PROMPT, v.TOKENS_RESPONSE))
    return otherwise


def _numbers(attributes: Mapping[str, Any], *, is_training: bool) -> Numbers:
    """Read the numbers of a stage: prompts or responses that are missing follow from all tokens."""
    given = {name: _number(value) for name, value in attributes.items() if name in NAMES}
    found = {name: number for name, number in given.items() if number is not None}
    numbers = {name: found[name] for name in KINDS if name in found}
    samples = found.get(v.SAMPLE_BATCH_SIZE, found.get(v.BATCH_SIZE))
    if samples is not None:
        numbers[v.SAMPLE_BATCH_SIZE] = samples
    if v.TOKENS in found:
        rest = max(found[v.TOKENS] - sum(numbers.get(name, 0) for name in KINDS[:3]), 0)
        if v.TOKENS_RESPONSE in numbers:
            numbers.setdefault(v.TOKENS_PROMPT, rest)
        else:
            follows = v.TOKENS_RESPONSE if is_training or v.TOKENS_PROMPT in numbers else v.TOKENS
            numbers[follows] = rest
    return numbers


def _number(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < WHOLE_LIMIT:
        return None
    return int(value)


def _completed(numbers: Numbers, more: Numbers) -> Numbers:
    return {**{name: number for name, number in more.items() if name not in _covered(numbers)}, **numbers}


def _outer(stages: Mapping[int, _Working]) -> Numbers:
    """Add up; where stages are inside one another, the outer one's number counts."""
    total: Numbers = {}
    for stage in stages.values():
        outer = [_covered(stages[span_id].numbers) for span_id in stage.parents & stages.keys()]
        for name, number in stage.numbers.items():
            if not any(name in covered for covered in outer):
                total[name] = total.get(name, 0) + number
    return total


def _covered(numbers: Numbers) -> set[str]:
    """Name the numbers that count no further: all tokens hold those of prompts and responses."""
    more = {v.TOKENS: {v.TOKENS_PROMPT, v.TOKENS_RESPONSE}, v.TOKENS_RESPONSE: {v.TOKENS}}
    return set(numbers).union(*(more[name] for name in numbers.keys() & more))


def _sum(numbers: Iterable[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None
