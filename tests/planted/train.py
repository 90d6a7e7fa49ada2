"""Trains the tiny model with TRL and with one problem, or none.

By hand, from the root of the repository::

    otel-rl run -- python -m tests.planted.train leak --seed 1
    otel-rl run -- torchrun --nproc-per-node 2 -m tests.planted.train slow_rank
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ.update({"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"})


OF_RULES = "policy_loss_positive", "answers_far_below_limit"
"""Problems that ``rules.py`` plants."""


def main() -> None:
    """Train as the command line says."""
    from tests.planted.problems import BY_NAME

    parser = argparse.ArgumentParser(prog="python -m tests.planted.train", description=__doc__.splitlines()[0])
    parser.add_argument("problem", nargs="?", default="clean", choices=["clean", "solved", *OF_RULES, *BY_NAME])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--trainer", choices=["grpo", "rloo"], default="grpo")
    parser.add_argument("--eval-every", type=int, default=0, help="steps between evaluations; 0: none")
    parser.add_argument("--iterations", type=int, default=1, help="updates with one rollout")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="otel_rl_planted_") as directory:
        train(options, Path(directory))


def train(options: argparse.Namespace, directory: Path) -> None:
    """Plant the problem and train."""
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    trainer = make(options, directory)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    if torch.distributed.is_initialized():
        from tests.programs.group import leave

        leave()


def make(options: argparse.Namespace, directory: Path) -> Any:
    """Make the trainer."""
    import trl

    from otel_rl.demo import task
    from tests.planted import base, plants

    training = plants.Training(
        config(options, directory), [plants.parity], task.prompts(256), task.prompts(16), task.tokenizer()
    )
    getattr(plants, options.problem)(training)
    kind = options.trainer.upper()
    trainer = getattr(trl, f"{kind}Trainer")(
        model=base.model(directory / "tiny-qwen2", options.seed),
        reward_funcs=training.rewards,
        args=getattr(trl, f"{kind}Config")(**training.config),
        train_dataset=training.data,
        eval_dataset=training.evaluation,
        processing_class=training.tokenizer,
    )
    for change in training.changes:
        change(trainer)
    return trainer


def config(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Say what the arguments of a clean training are."""
    from tests.planted.plants import LR

    return {
        "output_dir": str(directory / "checkpoints"), "max_steps": options.steps, "seed": options.seed,
        "learning_rate": LR, "per_device_train_batch_size": 8, "per_device_eval_batch_size": 8, "num_generations": 4,
        "num_iterations": options.iterations, "max_completion_length": 32, "beta": 0.02, "logging_steps": 10,
        "eval_strategy": "steps" if options.eval_every else "no", "eval_steps": options.eval_every or None,
        "save_strategy": "no", "report_to": [], "disable_tqdm": True, "use_cpu": True, "bf16": False,
        "dataloader_pin_memory": False, "gradient_checkpointing": False,
    }  # fmt: skip


if __name__ == "__main__":
    main()
