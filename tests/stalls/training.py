"""Trains the tiny model with TRL on two ranks; rank 1 stalls in several ways, one after the other, each for a while.

By hand, from the root of the repository, with the names of the stalls to plant, or without any::

    OTEL_RL_STALL_AFTER=8 otel-rl run -- torchrun --nproc-per-node 2 -m tests.stalls.training LOSSES held stopped
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.update({"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"})

LASTS_S = 20.0
EVERY = 4
FIRST = 6
RANK = int(os.environ.get("RANK", "0"))


def score_one() -> None:
    """Hang on one sample."""
    time.sleep(LASTS_S)


def sleep_before_collective() -> None:
    """Come late to what the other rank waits in."""
    time.sleep(LASTS_S)


def parse_answer() -> None:
    """Backtrack for ever, nearly: the interpreter is not given up."""
    began = time.thread_time()
    re.match(r"(a+)+$", "a" * 24 + "b")
    length = 24 + math.ceil(math.log2(LASTS_S / (time.thread_time() - began)))
    re.match(r"(a+)+$", "a" * length + "b")


def stop_this_process() -> None:
    """Stop this process; another one lets it go on."""
    subprocess.Popen(["sh", "-c", f"sleep {LASTS_S}; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), 19)


def fetch_item() -> None:
    """Hang in a worker of the data loader."""
    time.sleep(LASTS_S)


def write_to_pipe(directory: Path) -> None:
    """Make a pipe in the place of a file of the checkpoint: to open it blocks until somebody reads it."""
    directory.mkdir(parents=True, exist_ok=True)
    pipe = directory / "optimizer.pt"
    os.mkfifo(pipe)
    subprocess.Popen(["sh", "-c", f"sleep {LASTS_S}; cat '{pipe}' > /dev/null; rm '{pipe}'"])


IN_REWARD: dict[str, Callable[[], None]] = {
    "sample": score_one,
    "held": parse_answer,
    "stopped": stop_this_process,
}
KINDS = (*IN_REWARD, "late", "data", "checkpoint")


def main(losses: Path, planted: list[str]) -> None:
    """Train, and write the losses."""
    import torch
    import transformers
    import trl

    from otel_rl.demo import task
    from tests.planted import base
    from tests.programs.group import leave

    steps = {FIRST + EVERY * number: kind for number, kind in enumerate(planted)}
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()

    fetched = iter(range(1, 1_000_000))

    def fetch(rows: dict[str, Any]) -> dict[str, Any]:
        is_worker = torch.utils.data.get_worker_info() is not None
        if RANK == 1 and is_worker and steps.get(next(fetched)) == "data":
            fetch_item()
        return rows

    def parity(completions: list[str], wanted: list[str], trainer_state: Any, **_: Any) -> list[float]:
        kind = steps.get(trainer_state.global_step + 1)
        if RANK == 1 and kind in IN_REWARD:
            IN_REWARD[kind]()
        return list(task.parity(completions, wanted))

    class Plants(transformers.TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            kind = steps.get(state.global_step + 1)
            if RANK == 1 and kind == "late":
                sleep_before_collective()
            if RANK == 0 and kind == "checkpoint":
                write_to_pipe(Path(args.output_dir, f"checkpoint-{state.global_step + 1}"))

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
            control.should_save = steps.get(state.global_step) == "checkpoint"
            return control

    with tempfile.TemporaryDirectory(prefix="otel_rl_stalls_") as folder:
        shared = Path(os.environ.get("OUTPUT", folder))
        trainer = trl.GRPOTrainer(
            model=base.model(Path(folder) / "tiny-qwen2", 0),
            reward_funcs=[parity],
            args=trl.GRPOConfig(
                output_dir=str(shared), max_steps=FIRST + EVERY * len(KINDS), seed=0, learning_rate=1e-3,
                per_device_train_batch_size=8, num_generations=4, max_completion_length=32, beta=0.02,
                logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, bf16=False,
                dataloader_num_workers=1, dataloader_pin_memory=False, gradient_checkpointing=False,
            ),
            train_dataset=task.prompts(256).with_transform(fetch),
            processing_class=task.tokenizer(),
            callbacks=[Plants()],
        )  # fmt: skip
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    if RANK == 0:
        rows = [
            {key: row[key] for key in ("loss", "reward", "kl", "grad_norm")}
            for row in trainer.state.log_history
            if "loss" in row
        ]
        losses.write_text(json.dumps(rows))
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
