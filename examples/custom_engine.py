"""A rollout engine of one's own: each finished sequence is one call of ``otel_rl.request``.

    python examples/custom_engine.py
    otel-rl report

The engine decodes eight sequences at a time, one token each in turn, and takes up the next one when a slot is free, as
real engines do. Its times are those of ``time.perf_counter``, in seconds.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from time import perf_counter, sleep

import otel_rl

SLOTS = 8
LIMIT = 48
TOKEN_S = 0.0002


@dataclass
class Sequence:
    """One sequence in the engine, with the times that it has had so far."""

    name: str
    prompt_tokens: int
    wanted: int
    submitted: float
    scheduled: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    tokens: int = 0

    @property
    def is_over(self) -> bool:
        """Whether it has said what it wants, or may say no more."""
        return self.tokens >= min(self.wanted, LIMIT)


def generate(step: int, draw: random.Random, count: int = 64) -> None:
    """Generate a batch that is submitted at once."""
    now = perf_counter()
    waiting = deque(
        Sequence(f"step{step}-{number}", draw.randrange(8, 32), draw.randrange(1, 64), now) for number in range(count)
    )
    running: list[Sequence] = []
    while waiting or running:
        while waiting and len(running) < SLOTS:
            running.append(waiting.popleft())
            running[-1].scheduled = perf_counter()
        sleep(TOKEN_S)  # one forward of the model gives every running sequence a token
        now = perf_counter()
        for sequence in running:
            sequence.tokens += 1
            sequence.first_token = sequence.first_token or now
            sequence.last_token = now
        for sequence in filter(lambda one: one.is_over, running):
            report(sequence, step)
        running = [sequence for sequence in running if not sequence.is_over]


def report(sequence: Sequence, step: int) -> None:
    """Tell otel_rl what it was; what is left out is not reported."""
    otel_rl.request(
        "my-engine",
        clock="perf_counter",
        submitted=sequence.submitted,
        scheduled=sequence.scheduled,
        first_token=sequence.first_token,
        last_token=sequence.last_token,
        ended=perf_counter(),
        input_tokens=sequence.prompt_tokens,
        output_tokens=sequence.tokens,
        finish="stop" if sequence.tokens >= sequence.wanted else "length",
        model="tiny",
        id=sequence.name,
        policy_start=step,
        policy_end=step,
        limit=LIMIT,
    )


def main(steps: int = 5) -> None:
    """Run a few steps that only generate."""
    otel_rl.instrument()
    draw = random.Random(0)
    for number in range(1, steps + 1):
        with otel_rl.step(number), otel_rl.stage("sample", batch_size=64):
            generate(number, draw)
    otel_rl.uninstrument()


if __name__ == "__main__":
    main()
