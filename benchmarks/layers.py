"""What the four log layers cost: on the training thread, in the flusher, and whoever reads other log records.

    python benchmarks/layers.py

CPU time of the thread. The flusher is kept from running while the training thread is measured.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measure import keep, make_folder, show, side_by_side

os.environ["OTEL_RL_DIR"] = make_folder()

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.integrations.trl import scored
from otel_rl.integrations.trl.memory import rollouts
from otel_rl.integrations.trl.rewards import Scores
from otel_rl.journal.otlp.encode import SpanEncoder
from otel_rl.layers.kept_samples import FinishedSample, StepSamples
from otel_rl.layers.sample_records import Redaction, records_of
from otel_rl.process.state import Trace, state
from otel_rl.records import Log, Point
from otel_rl.trace.stage import current_stage

SAMPLE: dict[str, Any] = {
    "id": "s", "group": "g", "reward": 0.5, "rewards": {"digits": 0.5}, "advantage": 0.1, "prompt_tokens": 100,
    "response_tokens": 500, "turns": 1, "finish": "stop", "policy_version": 7,
}  # fmt: skip


def repeat(operation: Callable[[], object], each: int = 1) -> Callable[[int], None]:
    """Make a function that does an operation many times, of which each counts so often, and forgets what was queued."""

    def run(count: int) -> None:
        for _ in range(max(count // each, 1)):
            operation()
        state.queue.clear()

    return run


def nothing(**_: Any) -> None:
    """Take the same keywords."""


class Tokenizer:
    """What TRL asks it for."""

    pad_token_id = 0


class Trainer:
    """A trainer of TRL, as far as samples are read of it."""

    eos_token_ids = (1,)
    mask_truncated_completions = False
    _tokenizer = Tokenizer()

    def __init__(self, weights: Any) -> None:
        self.reward_weights = weights


def rollout(samples: int) -> Callable[[], None]:
    """Record a rollout of TRL as its hooks do."""
    import torch

    responses, texts = [[5] * 500] * samples, ["x" * 500] * samples
    rewards, advantages, trainer = torch.zeros(samples, 1), torch.zeros(samples), Trainer(torch.ones(1))

    def record() -> None:
        rollouts.scored["train"] = [Scores(rewards, samples, trainer.reward_weights, ("digits",), {})]
        scored.keep_generated(current_stage(), None, (responses, responses, None, None))
        scored.keep_texts((trainer, None, texts, texts))
        scored.record_samples(trainer, {"advantages": advantages})

    return record


def at_step_end() -> None:
    """What a step of TRL records for the layers alone: the epoch, and the loss that was logged."""
    state.add(Point(v.EPOCH, 0.5, state.now(), ((v.SCOPE_KEY, "global"),)))
    state.add(Point(v.LOSS, 0.5, state.now(), ()))


def selecting(number: int) -> None:
    """Choose among the samples of a step, and make and encode their records."""
    samples, trace = StepSamples(256, "train 7"), Trace(1, 0, step="train 7")
    samples.add(FinishedSample(str(one), reward=one % 17, response_tokens=one % 97) for one in range(number))
    logs = [one for one in records_of(samples, trace, {v.ITERATION: 7}, Redaction(""), 256) if isinstance(one, Log)]
    SpanEncoder({}).encode_logs(logs)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--count", type=int, default=4000)
    options = parser.parse_args()
    otel_rl.instrument(())
    state.awake = True  # no flusher: only the training thread is measured
    with otel_rl.step(1):
        tables = {
            "a sample, on the training thread": side_by_side(
                {
                    "a function that takes the same": repeat(lambda: nothing(**SAMPLE)),
                    "otel_rl.sample": repeat(lambda: otel_rl.sample(**SAMPLE)),
                    "of a TRL rollout of 8": repeat(rollout(8), 8),
                    "of a TRL rollout of 64": repeat(rollout(64), 64),
                },
                options.count,
            ),
            "a step, on the training thread": side_by_side(
                {
                    "otel_rl.record": repeat(lambda: otel_rl.record("mine", 0.5)),
                    "what the lines need": repeat(at_step_end),
                    "a TRL rollout of 64": repeat(rollout(64)),
                },
                options.count,
            ),
            "a sample, in the flusher": side_by_side(
                {
                    "of 256": lambda count: [selecting(256) for _ in range(max(count // 256, 1))],
                    "of 10,000": lambda count: [selecting(10_000) for _ in range(max(count // 10_000, 1))],
                },
                10_000,
                rounds=7,
            ),
        }
    for title, figures in tables.items():
        show(title, figures)
    keep(options.json, tables)


if __name__ == "__main__":
    main()
