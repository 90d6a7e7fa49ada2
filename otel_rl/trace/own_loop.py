"""Samples and tokens of a loop without a framework, as its stages and requests tell them; used by the flusher only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from otel_rl import vocabulary as v
from otel_rl.process.state import Trace, state
from otel_rl.records import Count, Later, Point
from otel_rl.trace.stage import Stage
from otel_rl.trace.throughput import ENVIRONMENT, PADDING, PROMPT, RESPONSE, ROLLOUT, TRAIN, Done, Rates

WORKING: Final = frozenset((v.SAMPLE, v.FORWARD, v.TRAIN))
"""Stages that tell samples and tokens."""
KINDS: Final = (v.TOKENS_PROMPT, v.TOKENS_RESPONSE, v.TOKENS_ENVIRONMENT, v.TOKENS_PADDING)
NAMES: Final = frozenset((*KINDS, v.TOKENS, v.SAMPLE_BATCH_SIZE, v.BATCH_SIZE))
NO_TURN: Final = -1
FAILED: Final = 2
"""OTLP's status code of an error."""
MOST: Final = 1 << 53
"""A count beyond that is none."""
Said = dict[str, int]
"""Numbers by the name of their attribute; what is not told is not there. ``rl.tokens`` are there only where neither
prompts nor responses are, and without those of an environment."""


@dataclass(slots=True)
class _Part:
    """One stage: what it tells, and the ids of the spans around it."""

    said: Said
    around: frozenset[int]


@dataclass(slots=True)
class _Requests:
    """Requests that belong to one rollout."""

    response: int | None = None
    firsts: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    """By turn, the number of requests and their prompt tokens: the prompt of a later turn repeats the earlier ones."""

    def said(self) -> Said:
        """Return what they tell: samples and prompts of the first turn, responses of all turns."""
        first = min((turn for turn in self.firsts if turn != NO_TURN), default=NO_TURN)
        found = [self.firsts[turn] for turn in {NO_TURN, first} & self.firsts.keys()]
        numbers = {
            v.SAMPLE_BATCH_SIZE: sum(samples for samples, _ in found) or None,
            v.TOKENS_PROMPT: _sum(prompt for _, prompt in found),
            v.TOKENS_RESPONSE: self.response,
        }
        return {name: number for name, number in numbers.items() if number is not None}


class Work:
    """What was worked off in one step of one rank, evaluations left out.

    Each token counts once: of rollout stages inside one another the outer one counts as far as it tells a number, of
    requests what no rollout stage tells. Training counts each forward, or the stage around them where none tells it.
    """

    __slots__ = ("_forwards", "_requests", "_rollouts", "_trains")

    def __init__(self) -> None:
        """Begin with nothing."""
        self._rollouts: dict[int, _Part] = {}
        self._forwards: dict[int, _Part] = {}
        self._trains: dict[int, _Part] = {}
        self._requests: dict[int, _Requests] = {}
        """By the id of the rollout stage that they belong to; 0 for those of other stages and of the step."""

    def take(self, stage: Stage, around: Iterable[int]) -> None:
        """Take in a stage that has ended; of one that failed, which may be tried again, nothing counts."""
        if (stage.status or (0,))[0] == FAILED or v.TRUNCATED in (stage.attributes or {}):
            return
        parts = {v.SAMPLE: self._rollouts, v.FORWARD: self._forwards, v.TRAIN: self._trains}[stage.name]
        said = _said(stage.attributes or {}, is_training=stage.name != v.SAMPLE)
        parts[stage.span_id] = _Part(said, frozenset(around))

    def take_request(self, rollout: int, turn: int, prompt: int, response: int) -> None:
        """Take in a finished sequence; a number below 0 is not known."""
        found = self._requests.setdefault(rollout, _Requests())
        samples, prompts = found.firsts.get(turn, (0, None))
        found.firsts[turn] = samples + 1, _sum((prompts, prompt if prompt >= 0 else None))
        found.response = _sum((found.response, response if response >= 0 else None))

    @property
    def has_rollout(self) -> bool:
        """Whether anything was generated for training."""
        return bool(self._rollouts or self._requests)

    @property
    def has_training(self) -> bool:
        """Whether anything was trained."""
        return bool(self._forwards or self._trains)

    def rollout(self) -> Said:
        """Return the numbers of all rollouts."""
        parts = {span_id: _Part(dict(part.said), part.around) for span_id, part in self._rollouts.items()}
        for span_id, requests in self._requests.items():
            if span_id:
                part = parts.setdefault(span_id, _Part({}, frozenset()))
                part.said = _filled(part.said, requests.said())
        said = _outer(parts)
        return _filled(said, self._requests[0].said()) if 0 in self._requests else said

    def training(self) -> Said:
        """Return the numbers of all forwards."""
        said = _outer(self._forwards)
        return said if v.TOKENS_RESPONSE in said else _outer(self._trains)


class OwnLoop:
    """Counts the work of one loop that ``otel_rl.step`` holds: as ``Throughput`` counts that of a trainer."""

    def __init__(self) -> None:
        self._rates = Rates()
        self._told: set[tuple[str, str]] = set()
        """Which numbers the loop has told by now; of the others there are no rates."""

    def begin_step(self, trace: Trace) -> None:
        """Have what the stages of a step tell collected."""
        trace.work = Work()

    def end_step(self, trace: Trace, begin: int, end: int) -> None:
        """Record what the step from ``begin`` to ``end`` (monotonic, ns) has worked off."""
        if trace.work is not None:
            state.add(Later(self._end_step, (trace, begin, end)))

    def _end_step(self, trace: Trace, begin: int, end: int) -> Iterator[Count | Point]:
        work: Work = trace.work
        rollout, training = work.rollout(), work.training()
        yield from _counts(v.SAMPLES, v.SAMPLE_TOKENS, rollout)
        yield from _counts("", v.TRAIN_TOKENS, training)
        nothing = None if work.has_rollout else 0
        done = Done(
            rollout.get(v.SAMPLE_BATCH_SIZE, nothing),
            _computed(rollout, nothing),
            training.get(v.TOKENS_RESPONSE, None if work.has_training else 0),
        )
        kinds = ((v.SAMPLES_RATE, ROLLOUT[1]), (v.TOKENS_RATE, ROLLOUT[1]), (v.TOKENS_RATE, TRAIN[1]))
        self._told.update(kind for kind, number in zip(kinds, done, strict=True) if number)
        for point in self._rates.step(begin, end, trace.anchor, done, has_rollout=work.has_rollout):
            if (point.name, str(dict(point.labels)[v.WORK])) in self._told:
                yield point


def _counts(samples: str, tokens: str, said: Said) -> Iterator[Count]:
    if samples and v.SAMPLE_BATCH_SIZE in said:
        yield Count(samples, said[v.SAMPLE_BATCH_SIZE])
    kinds = {v.TOKENS_PROMPT: PROMPT, v.TOKENS_RESPONSE: RESPONSE, v.TOKENS_ENVIRONMENT: ENVIRONMENT}
    for name, labels in (kinds | ({} if samples else {v.TOKENS_PADDING: PADDING})).items():
        if said.get(name):
            yield Count(tokens, said[name], labels)


def _computed(said: Said, otherwise: int | None) -> int | None:
    """Return the tokens of prompts and responses together, or ``otherwise`` if responses are not told."""
    if v.TOKENS in said or v.TOKENS_RESPONSE in said:
        return sum(said.get(name, 0) for name in (v.TOKENS, v.TOKENS_PROMPT, v.TOKENS_RESPONSE))
    return otherwise


def _said(attributes: Mapping[str, Any], *, is_training: bool) -> Said:
    """Read what a stage tells: prompts or responses that are missing follow from all tokens."""
    given = {name: _number(value) for name, value in attributes.items() if name in NAMES}
    numbers = {name: number for name, number in given.items() if number is not None}
    said = {name: numbers[name] for name in KINDS if name in numbers}
    samples = numbers.get(v.SAMPLE_BATCH_SIZE, numbers.get(v.BATCH_SIZE))
    if samples is not None:
        said[v.SAMPLE_BATCH_SIZE] = samples
    if v.TOKENS in numbers:
        rest = max(numbers[v.TOKENS] - sum(said.get(name, 0) for name in KINDS[:3]), 0)
        if v.TOKENS_RESPONSE in said:
            said.setdefault(v.TOKENS_PROMPT, rest)
        elif is_training or v.TOKENS_PROMPT in said:
            said[v.TOKENS_RESPONSE] = rest
        else:
            said[v.TOKENS] = rest
    return said


def _number(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < MOST:
        return None
    return int(value)


def _filled(said: Said, more: Said) -> Said:
    """Add what is not told yet."""
    return {**{name: number for name, number in more.items() if name not in _told_by(said)}, **said}


def _outer(parts: Mapping[int, _Part]) -> Said:
    """Add up; of parts inside one another a number of the outer one counts."""
    total: Said = {}
    for part in parts.values():
        outer = [_told_by(parts[span_id].said) for span_id in part.around & parts.keys()]
        for name, number in part.said.items():
            if not any(name in told for told in outer):
                total[name] = total.get(name, 0) + number
    return total


def _told_by(said: Said) -> set[str]:
    """Name the numbers that count no further: all tokens hold those of prompts and responses."""
    more = {v.TOKENS: {v.TOKENS_PROMPT, v.TOKENS_RESPONSE}, v.TOKENS_RESPONSE: {v.TOKENS}}
    return set(said).union(*(more[name] for name in said.keys() & more))


def _sum(numbers: Iterable[int | None]) -> int | None:
    """Add what is known; None where nothing is."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None
