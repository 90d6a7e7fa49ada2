"""What a rank worked off: samples and tokens, as counters, as rates per step and per rollout cycle."""

from __future__ import annotations

from otel_rl import vocabulary
from otel_rl.metrics import count, gauge
from otel_rl.runtime import state

ROLLOUT = (vocabulary.WORK, "rollout")
TRAIN = (vocabulary.WORK, "train")


class Throughput:
    """Counts one loop's work on this rank: rollout tokens once a sample, training tokens once a forward.

    A cycle lasts from the begin of one step with a rollout to the begin of the next such step. Where a rollout serves
    several steps the rate per step alternates; the rate per cycle does not.
    """

    def __init__(self) -> None:
        self.samples = 0
        self.sample_tokens = 0
        self.train_tokens = 0
        self.outside_ns = 0
        """Evaluation and checkpoints of the step."""
        self._cycle_begin = 0
        self._cycle = (0, 0, 0)

    def rollout(self, samples: int, prompt: int, response: int) -> None:
        """Count a rollout of this rank."""
        self.samples += samples
        self.sample_tokens += prompt + response
        count(vocabulary.SAMPLES, samples)
        count(vocabulary.SAMPLE_TOKENS, prompt, (vocabulary.TOKEN_KIND, "prompt"))
        count(vocabulary.SAMPLE_TOKENS, response, (vocabulary.TOKEN_KIND, "response"))

    def forward(self, prompt: int, response: int, padding: int) -> None:
        """Count a training forward of this rank."""
        self.train_tokens += prompt + response
        count(vocabulary.TRAIN_TOKENS, prompt, (vocabulary.TOKEN_KIND, "prompt"))
        count(vocabulary.TRAIN_TOKENS, response, (vocabulary.TOKEN_KIND, "response"))
        count(vocabulary.TRAIN_TOKENS, padding, (vocabulary.TOKEN_KIND, "padding"))

    def end_step(self, begin: int, end: int) -> None:
        """Record the rates of the step from ``begin`` to ``end`` (monotonic, ns)."""
        time_ns = end + state.clock.anchor
        gauge(vocabulary.TRAIN_TIME, (end - begin - self.outside_ns) / 1e9, time_ns=time_ns)
        done = (self.samples, self.sample_tokens, self.train_tokens)
        _rates(done, (end - begin) / 1e9, "step", time_ns)
        if self.samples and self._cycle_begin:
            _rates(self._cycle, (begin - self._cycle_begin) / 1e9, "cycle", begin + state.clock.anchor)
        if self.samples:
            self._cycle_begin, self._cycle = begin, done
        else:
            self._cycle = (self._cycle[0], self._cycle[1], self._cycle[2] + self.train_tokens)
        self.samples = self.sample_tokens = self.train_tokens = self.outside_ns = 0


def _rates(done: tuple[int, int, int], seconds: float, wall: str, time_ns: int) -> None:
    if seconds <= 0:
        return
    samples, sample_tokens, train_tokens = done
    over = (vocabulary.WALL, wall)
    gauge(vocabulary.SAMPLES_RATE, samples / seconds, ROLLOUT, over, time_ns=time_ns)
    gauge(vocabulary.TOKENS_RATE, sample_tokens / seconds, ROLLOUT, over, time_ns=time_ns)
    gauge(vocabulary.TOKENS_RATE, train_tokens / seconds, TRAIN, over, time_ns=time_ns)
