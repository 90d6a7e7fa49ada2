"""Trains the demo's model in one process with timers of its own around methods, and writes what they saw as JSON.

Arguments: the file, a folder for the model, steps. Nothing here reads what otel_rl recorded. Each moment of a request
is timed within otel_rl's hook and around it: what it records lies between the two, however busy the machine is.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import transformers
from transformers.generation.utils import GenerationMixin

from otel_rl.demo import task, train

Model: Any = transformers.Qwen2ForCausalLM
SEEN: dict[str, Any] = {"requests": [], "steps": []}
NOW: dict[str, Any] = {"forwards": [], "is_evaluation": False}


@dataclass
class Readings:
    """The clock at the moments of one ``generate``, seconds."""

    begun: float = 0.0
    ticks: list[float] = field(default_factory=list)
    """When there is a token for each row; the first is before any."""


INNER, OUTER = Readings(), Readings()
"""Within otel_rl's hooks, and around them."""


def time_moments(owner: Any, readings: Readings) -> None:
    """Note when each call of ``generate`` begins, and when it has a token for each row.

    Where the owner is the class of the model, that is around the hooks, which are on its base.
    """
    plain_generate, plain_wait = owner.generate, owner._has_unfinished_sequences

    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        readings.ticks = []
        readings.begun = perf_counter()
        return plain_generate(self, *args, **kwargs)

    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = plain_wait(self, *args, **kwargs)
        readings.ticks.append(perf_counter())
        return result

    owner.generate, owner._has_unfinished_sequences = generate, wait


def time_forwards() -> None:
    """Note when each forward ends."""
    plain_forward = Model.forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = plain_forward(self, *args, **kwargs)
        NOW["forwards"].append(perf_counter())
        return result

    Model.forward = forward


def note_responses() -> None:
    """Note what each ``generate`` returned, with the times of each row."""
    plain_generate = Model.generate

    def generate(self: Any, inputs: Any = None, *args: Any, **kwargs: Any) -> Any:
        NOW["forwards"] = []
        result = plain_generate(self, inputs, *args, **kwargs)
        prompt = (kwargs["input_ids"] if inputs is None else inputs).shape[1]
        for row in getattr(result, "sequences", result)[:, prompt:].tolist():
            SEEN["requests"].append(response(row))
        return result

    Model.generate = generate


def response(row: list[int]) -> dict[str, Any]:
    """Describe one sequence: it ends with its first end token, or else with the last of the batch.

    Each time is a pair: the least that it can be, and the most.
    """
    length = row.index(task.EOS) + 1 if task.EOS in row else len(row)
    inner, outer = INNER.ticks[1:], OUTER.ticks[1:]
    last = length - 1
    return {
        "is_evaluation": NOW["is_evaluation"],
        "tokens": [length, length],
        "is_cut": task.EOS not in row and length == task.MAX_RESPONSE,
        "first_forward_s": NOW["forwards"][0] - OUTER.begun,
        "ttft_s": [inner[0] - INNER.begun, outer[0] - OUTER.begun],
        "duration_s": [inner[last] - INNER.begun, outer[last] - OUTER.begun],
        "tpot_s": [(inner[last] - outer[0]) / last, (outer[last] - inner[0]) / last] if last else None,
    }


class End(transformers.TrainerCallback):  # type: ignore[misc]
    """Notes when the last step is over."""

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        SEEN["steps"].append(perf_counter())


def time_steps(trainer: Any) -> None:
    """Note when the trainer asks for the batches of a step, with which it begins, and what it evaluates."""
    plain_batches, plain_evaluate = trainer.get_batch_samples, trainer.evaluate

    def batches(*args: Any, **kwargs: Any) -> Any:
        SEEN["steps"].append(perf_counter())
        return plain_batches(*args, **kwargs)

    def evaluate(*args: Any, **kwargs: Any) -> Any:
        NOW["is_evaluation"] = True
        try:
            return plain_evaluate(*args, **kwargs)
        finally:
            NOW["is_evaluation"] = False

    trainer.get_batch_samples, trainer.evaluate = batches, evaluate
    trainer.add_callback(End())


def main(output: str, folder: str, steps: str) -> None:
    """Train and write."""
    train.quiet()
    time_forwards()
    time_moments(GenerationMixin, INNER)
    import otel_rl

    otel_rl.instrument()
    time_moments(Model, OUTER)
    note_responses()
    import torch

    torch.set_num_threads(1)
    options = train.parse(["--steps", steps, "--iters", "1", "--eval-every", "8", "--save-every", "0"])
    model = task.model(Path(folder, "tiny-qwen2"), 0)
    trainer = train.make_trainer(options, Path(folder), model, [task.parity, task.judge])
    time_steps(trainer)
    trainer.train()
    Path(output).write_text(json.dumps(SEEN))


if __name__ == "__main__":
    main(*sys.argv[1:])
