"""Trains the demo's model in one process with timers of its own around methods, and writes what they saw as JSON.

Arguments: the file, a folder for the model, steps. Nothing here reads what otel_rl recorded.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import transformers
from transformers.generation.utils import GenerationMixin

from otel_rl.demo import task, train

SEEN: dict[str, Any] = {"requests": [], "steps": []}
NOW: dict[str, Any] = {"ticks": [], "forwards": [], "is_evaluation": False}


def time_generation() -> None:
    """Note when each call of ``generate`` begins, when a forward of it ends, and when it has a token for each row."""
    plain_generate, plain_wait = GenerationMixin.generate, GenerationMixin._has_unfinished_sequences
    plain_forward = transformers.Qwen2ForCausalLM.forward

    def generate(self: Any, inputs: Any = None, *args: Any, **kwargs: Any) -> Any:
        NOW["ticks"], NOW["forwards"] = [], []
        begun = perf_counter()
        result = plain_generate(self, inputs, *args, **kwargs)
        prompt = (kwargs["input_ids"] if inputs is None else inputs).shape[1]
        for row in getattr(result, "sequences", result)[:, prompt:].tolist():
            SEEN["requests"].append(response(row, begun, NOW["ticks"][1:]))
        return result

    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = plain_wait(self, *args, **kwargs)
        NOW["ticks"].append(perf_counter())
        return result

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = plain_forward(self, *args, **kwargs)
        NOW["forwards"].append(perf_counter())
        return result

    GenerationMixin.generate, GenerationMixin._has_unfinished_sequences = generate, wait
    transformers.Qwen2ForCausalLM.forward = forward


def response(row: list[int], begun: float, tokens: list[float]) -> dict[str, Any]:
    """Describe one sequence: it ends with its first end token, or else with the last of the batch."""
    length = row.index(task.EOS) + 1 if task.EOS in row else len(row)
    return {
        "is_evaluation": NOW["is_evaluation"],
        "tokens": length,
        "is_cut": task.EOS not in row and length == task.MAX_RESPONSE,
        "first_forward_s": NOW["forwards"][0] - begun,
        "ttft_s": tokens[0] - begun,
        "duration_s": tokens[length - 1] - begun,
        "tpot_s": (tokens[length - 1] - tokens[0]) / (length - 1) if length > 1 else None,
    }


class End(transformers.TrainerCallback):
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
    time_generation()
    import otel_rl

    otel_rl.instrument()
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
