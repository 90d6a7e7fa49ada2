"""What a rank worked off: samples and tokens, as counters, as rates per step and per rollout cycle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from otel_rl import vocabulary
from otel_rl.records import Count, Later, Point
from otel_rl.runtime import state
from otel_rl.spans import Stage

ROLLOUT = (vocabulary.WORK, "rollout")
TRAIN = (vocabulary.WORK, "train")
STEP = (vocabulary.WALL, "step")
CYCLE = (vocabulary.WALL, "cycle")
PROMPT = ((vocabulary.TOKEN_KIND, "prompt"),)
RESPONSE = ((vocabulary.TOKEN_KIND, "response"),)
ENVIRONMENT = ((vocabulary.TOKEN_KIND, "environment"),)
PADDING = ((vocabulary.TOKEN_KIND, "padding"),)


class Throughput:
    """Counts one loop's work on this rank: rollout tokens once a sample, training tokens once a forward.

    Rates leave out what a tool or an environment wrote; that of training counts the tokens that the loss uses.

    A cycle lasts from the begin of one step with a rollout to the begin of the next such step. Where a rollout serves
    several steps the rate per step alternates; the rate per cycle does not. The training thread only says what happened
    (``rollout``, ``end_step``); the flusher counts it, in the same order; tokens of a forward on a device
    count when they have arrived, perhaps in the next step.
    """

    def __init__(self) -> None:
        self.outside_ns = 0
        """Evaluation and checkpoints of the open step; the training thread's own."""
        self._samples = self._sample_tokens = self._train_tokens = 0
        self._cycle_begin = 0
        self._cycle = (0, 0, 0)

    def rollout(self, samples: int, prompt: int, response: int, environment: int = 0) -> None:
        """Count a rollout of this rank."""
        state.add(Later(self._rollout, (samples, prompt, response, environment)))

    def end_step(self, begin: int, end: int) -> None:
        """Record the rates of the step from ``begin`` to ``end`` (monotonic, ns)."""
        outside, self.outside_ns = self.outside_ns, 0
        state.add(Later(self._end_step, (begin, end, outside, state.clock.anchor)))

    # --- in the flusher -----------------------------------------------------------------------------------------------

    def count_forward(self, prompt: int, response: int, padding: int, environment: int = 0) -> Iterator[Count]:
        """Count a training forward; the flusher's own."""
        self._train_tokens += response
        yield Count(vocabulary.TRAIN_TOKENS, prompt, PROMPT)
        yield Count(vocabulary.TRAIN_TOKENS, response, RESPONSE)
        yield Count(vocabulary.TRAIN_TOKENS, padding, PADDING)
        if environment:
            yield Count(vocabulary.TRAIN_TOKENS, environment, ENVIRONMENT)

    def _rollout(self, samples: int, prompt: int, response: int, environment: int) -> Iterator[Count]:
        self._samples += samples
        self._sample_tokens += prompt + response
        yield Count(vocabulary.SAMPLES, samples)
        yield Count(vocabulary.SAMPLE_TOKENS, prompt, PROMPT)
        yield Count(vocabulary.SAMPLE_TOKENS, response, RESPONSE)
        if environment:
            yield Count(vocabulary.SAMPLE_TOKENS, environment, ENVIRONMENT)

    def _end_step(self, begin: int, end: int, outside: int, anchor: int) -> list[Point]:
        points = [Point(vocabulary.TRAIN_TIME, (end - begin - outside) / 1e9, end + anchor)]
        done = (self._samples, self._sample_tokens, self._train_tokens)
        points += _rates(done, (end - begin) / 1e9, STEP, end + anchor)
        if self._samples and self._cycle_begin:
            points += _rates(self._cycle, (begin - self._cycle_begin) / 1e9, CYCLE, begin + anchor)
        if self._samples:
            self._cycle_begin, self._cycle = begin, done
        else:
            self._cycle = (self._cycle[0], self._cycle[1], self._cycle[2] + self._train_tokens)
        self._samples = self._sample_tokens = self._train_tokens = 0
        return points


def add_padding(stage: Stage, positions: int) -> None:
    """Add positions that a static batch computed for sequences that had ended to what the stage around it says."""
    before: Any = (stage.attributes or {}).get(vocabulary.TOKENS_PADDING, 0)
    stage.set_attribute(vocabulary.TOKENS_PADDING, before + positions)


def _rates(done: tuple[int, int, int], seconds: float, over: tuple[str, str], time_ns: int) -> tuple[Point, ...]:
    if seconds <= 0:
        return ()
    samples, sample_tokens, train_tokens = done
    return (
        Point(vocabulary.SAMPLES_RATE, samples / seconds, time_ns, (ROLLOUT, over)),
        Point(vocabulary.TOKENS_RATE, sample_tokens / seconds, time_ns, (ROLLOUT, over)),
        Point(vocabulary.TOKENS_RATE, train_tokens / seconds, time_ns, (TRAIN, over)),
    )
