"""The training program of ``otel-rl demo``: TRL's own trainer and a tiny model, on the ranks that ``torchrun`` starts.

By hand, on two ranks::

    torchrun --nproc_per_node=2 -m otel_rl.demo.train

The only line about telemetry is ``otel_rl.instrument()``; the rest is a usual GRPO script.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any


def main(argv: Sequence[str] | None = None) -> None:
    """Train with the options of the command line."""
    options = parse(argv)
    quiet()
    if options.otel:
        import otel_rl

        otel_rl.instrument()
    with tempfile.TemporaryDirectory(prefix="otel_rl_demo_") as scratch:
        train(options, options.workdir or Path(scratch))


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m otel_rl.demo.train", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--steps", type=int, default=240, help="optimizer steps (default: %(default)s)")
    add("--num-generations", type=int, default=8, help="answers to one prompt (default: %(default)s)")
    add("--batch-size", type=int, default=16, help="answers of a rank in a micro-batch (default: %(default)s)")
    add("--grad-accum", type=int, default=1, help="micro-batches of an optimizer step (default: %(default)s)")
    add("--iters", type=int, default=2, help="updates with one rollout (default: %(default)s)")
    add("--eval-every", type=int, default=60, help="steps between evaluations; 0: none (default: %(default)s)")
    add("--save-every", type=int, default=80, help="steps between checkpoints; 0: none (default: %(default)s)")
    add("--log-every", type=int, default=5, help="steps between the trainer's logs (default: %(default)s)")
    add("--workdir", type=Path, help="folder for model and checkpoints (default: a temporary one)")
    add("--output", type=Path, metavar="FILE", help="write a summary as JSON")
    add("--no-otel", dest="otel", action="store_false", help="train without otel_rl")
    return parser.parse_args(argv)


def quiet() -> None:
    """Hide notes of the frameworks about themselves."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"transformers\.")


def train(options: argparse.Namespace, workdir: Path) -> None:
    """Make model, task and trainer below ``workdir``, and train."""
    import torch
    import transformers

    from otel_rl.demo import task
    from otel_rl.demo.progress_line import ProgressLine

    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    rank = int(os.environ.get("RANK", "0"))
    progress = ProgressLine(options.steps)
    model = task.model(workdir / f"rank-{rank}" / "tiny-qwen2", 0)
    trainer = make_trainer(options, workdir, model, [task.parity, task.judge])
    trainer.remove_callback(transformers.PrinterCallback)
    if rank == 0:
        trainer.add_callback(progress)
    started = time.perf_counter()
    trainer.train()
    if options.output and rank == 0:
        result = progress.result(time.perf_counter() - started)
        options.output.write_text(json.dumps(asdict(result), indent=2) + "\n")
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def make_trainer(options: argparse.Namespace, workdir: Path, model: Any, rewards: list[Any]) -> Any:
    """Make TRL's trainer for GRPO."""
    import trl

    from otel_rl.demo import task

    arguments = trl.GRPOConfig(
        output_dir=str(workdir / "checkpoints"),
        max_steps=options.steps,
        seed=0,
        learning_rate=2e-3,
        per_device_train_batch_size=options.batch_size,
        per_device_eval_batch_size=options.batch_size,
        gradient_accumulation_steps=options.grad_accum,
        num_generations=options.num_generations,
        num_iterations=options.iters,
        max_completion_length=task.MAX_RESPONSE,
        beta=0.02,
        reward_weights=list(task.REWARD_WEIGHTS),
        logging_steps=options.log_every,
        eval_strategy="steps" if options.eval_every else "no",
        eval_steps=options.eval_every or None,
        save_strategy="steps" if options.save_every else "no",
        save_steps=options.save_every or 1,
        save_total_limit=2,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        dataloader_pin_memory=False,
        ddp_find_unused_parameters=False,
        # transformers 5.23 adds a forward hook with every generation where this is on: steps grow without end
        gradient_checkpointing=False,
    )
    return trl.GRPOTrainer(
        model=model,
        reward_funcs=rewards,
        args=arguments,
        train_dataset=task.prompts(256),
        eval_dataset=task.prompts(8),
        processing_class=task.tokenizer(),
    )


if __name__ == "__main__":
    main()
