"""What a rank worked off: samples and tokens, as counters, as rates per step and per rollout cycle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from otel_rl import vocabulary
from otel_rl.process.state import state
from otel_rl.records import Count, Deferred, Point
from otel_rl.trace.stage import Stage

ROLLOUT = (vocabulary.WORK, "rollout")
TRAIN = (vocabulary.WORK, "train")
STEP = (vocabulary.WALL, "step")
CYCLE = (vocabulary.WALL, "cycle")
PROMPT = ((vocabulary.TOKEN_KIND, "prompt"),)
RESPONSE = ((vocabulary.TOKEN_KIND, "response"),)
ENVIRONMENT = ((vocabulary.TOKEN_KIND, "environment"),)
PADDING = ((vocabulary.TOKEN_KIND, "padding"),)


class WorkDone(NamedTuple):
    """Counts of a step; None is not known."""

    samples: int | None = 0
    sample_tokens: int | None = 0
    train_tokens: int | None = 0


class Rates:
    """The rates of one loop, per step and per rollout cycle; used by the flusher only.

    A cycle lasts from the begin of one step with a rollout to the begin of the next such step. Where a rollout serves
    several steps the rate per step alternates; the rate per cycle does not. One with a step that failed has none.
    """

    def __init__(self) -> None:
        self._begin = self._end = 0
        """When the cycle began, and the last step ended (monotonic, ns); 0 where none has."""
        self._cycle = WorkDone()

    def step(self, begin: int, end: int, anchor: int, done: WorkDone, *, has_rollout: bool) -> Iterator[Point]:
        """Return the rates of a step that has ended, and of the cycle that ended where it began."""
        yield from _rates(done, (end - begin) / 1e9, STEP, end + anchor)
        if begin != self._end:
            self._begin = 0
        self._end = end
        if has_rollout:
            if self._begin:
                yield from _rates(self._cycle, (begin - self._begin) / 1e9, CYCLE, begin + anchor)
            self._begin, self._cycle = begin, done
        else:
            self._cycle = WorkDone(*map(_add, self._cycle, done))


class Throughput:
    """Counts one loop's work on this rank: rollout tokens once a sample, training tokens once a forward.

    Rates leave out what a tool or an environment wrote; that of training counts the tokens that the loss uses.

    The training thread only says what happened (``rollout``, ``end_step``); the flusher counts it, in the same order;
    tokens of a forward on a device count when they have arrived, perhaps in the next step.
    """

    def __init__(self) -> None:
        self.outside_ns = 0
        """Evaluation and checkpoints of the open step; the training thread's own."""
        self._samples = self._sample_tokens = self._train_tokens = 0
        self._has_trained = False
        self._rates = Rates()

    def rollout(self, samples: int, prompt: int, response: int, environment: int = 0) -> None:
        """Count a rollout of this rank."""
        state.add(Deferred(self.count_rollout, (samples, prompt, response, environment)))

    def end_step(self, begin: int, end: int) -> None:
        """Record the rates of the step from ``begin`` to ``end`` (monotonic, ns)."""
        outside, self.outside_ns = self.outside_ns, 0
        state.add(Deferred(self._end_step, (begin, end, outside, state.clock.anchor)))

    # --- in the flusher -----------------------------------------------------------------------------------------------

    def count_rollout(self, samples: int, prompt: int, response: int, environment: int = 0) -> Iterator[Count]:
        """Count a rollout; the flusher's own."""
        self._samples += samples
        self._sample_tokens += prompt + response
        yield Count(vocabulary.SAMPLES, samples)
        yield Count(vocabulary.SAMPLE_TOKENS, prompt, PROMPT)
        yield Count(vocabulary.SAMPLE_TOKENS, response, RESPONSE)
        if environment:
            yield Count(vocabulary.SAMPLE_TOKENS, environment, ENVIRONMENT)

    def count_forward(self, prompt: int, response: int, padding: int, environment: int = 0) -> Iterator[Count]:
        """Count a training forward; the flusher's own."""
        self._train_tokens += response
        yield Count(vocabulary.TRAIN_TOKENS, prompt, PROMPT)
        yield Count(vocabulary.TRAIN_TOKENS, response, RESPONSE)
        yield Count(vocabulary.TRAIN_TOKENS, padding, PADDING)
        if environment:
            yield Count(vocabulary.TRAIN_TOKENS, environment, ENVIRONMENT)

    def end_guest_step(self, begin: int, end: int, anchor: int) -> Iterator[Point]:
        """Return the rate of a step of another process's (monotonic, ns), once anything was trained; the flusher's."""
        done, self._train_tokens = WorkDone(None, None, self._train_tokens), 0
        self._has_trained |= bool(done.train_tokens)
        if self._has_trained:
            yield from _rates(done, (end - begin) / 1e9, STEP, end + anchor)

    def _end_step(self, begin: int, end: int, outside: int, anchor: int) -> list[Point]:
        points = [Point(vocabulary.TRAIN_TIME, (end - begin - outside) / 1e9, end + anchor)]
        done = WorkDone(self._samples, self._sample_tokens, self._train_tokens)
        points += self._rates.step(begin, end, anchor, done, has_rollout=self._samples > 0)
        self._samples = self._sample_tokens = self._train_tokens = 0
        return points


def add_padding(stage: Stage, positions: int) -> None:
    """Add positions that a static batch computed for sequences that had ended."""
    before: Any = (stage.attributes or {}).get(vocabulary.TOKENS_PADDING, 0)
    stage.set_attribute(vocabulary.TOKENS_PADDING, before + positions)


def _add(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _rates(done: WorkDone, seconds: float, over: tuple[str, str], time_ns: int) -> Iterator[Point]:
    kinds = ((vocabulary.SAMPLES_RATE, ROLLOUT), (vocabulary.TOKENS_RATE, ROLLOUT), (vocabulary.TOKENS_RATE, TRAIN))
    for (name, work), number in zip(kinds, done, strict=True):
        if number is not None and seconds > 0:
            yield Point(name, number / seconds, time_ns, (work, over))
