"""The training program of ``otel-rl demo``: TRL's own trainer, a tiny model, as many ranks as ``torchrun`` starts.

By hand, on two ranks::

    torchrun --nproc_per_node=2 -m otel_rl.demo.train

The only line about telemetry is ``otel_rl.instrument()``; all else is what anybody's GRPO script does.
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
    add("--trainer", choices=("grpo", "rloo"), default="grpo", help="algorithm (default: %(default)s)")
    add("--steps", type=int, default=240, help="optimizer steps (default: %(default)s)")
    add("--seed", type=int, default=0, help="seed of model and training (default: %(default)s)")
    add("--beta", type=float, default=0.02, help="KL penalty; 0: no reference model (default: %(default)s)")
    add("--num-generations", type=int, default=8, help="answers to one prompt (default: %(default)s)")
    add("--batch-size", type=int, default=16, help="answers of a rank in a micro-batch (default: %(default)s)")
    add("--grad-accum", type=int, default=1, help="micro-batches of an optimizer step (default: %(default)s)")
    add("--iters", type=int, default=2, help="updates with one rollout (default: %(default)s)")
    add("--eval-every", type=int, default=60, help="steps between evaluations; 0: none (default: %(default)s)")
    add("--save-every", type=int, default=80, help="steps between checkpoints; 0: none (default: %(default)s)")
    add("--log-every", type=int, default=5, help="steps between the trainer's logs (default: %(default)s)")
    add("--workdir", type=Path, help="where model and checkpoints go (default: a directory, removed unless killed)")
    add("--output", type=Path, metavar="FILE", help="write a summary as JSON")
    add("--record", type=Path, metavar="FILE", help="write what every step computed, to compare two runs bit by bit")
    add("--no-otel", dest="otel", action="store_false", help="train without otel_rl")
    return parser.parse_args(argv)


def quiet() -> None:
    """Hide what a newcomer cannot act on: notes of the frameworks about themselves."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"transformers\.")


def train(options: argparse.Namespace, workdir: Path) -> None:
    """Make model, task and trainer below ``workdir``, train, and say what came of it."""
    import torch
    import transformers

    from otel_rl.demo import follow, task

    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    rank = int(os.environ.get("RANK", "0"))
    progress = follow.Progress(options.steps)
    recorder = follow.Recorder() if options.record else None
    rewards = [recorder.watch(task.parity) if recorder else task.parity, task.judge]
    trainer = make_trainer(options, workdir, task.model(workdir / f"rank-{rank}" / "tiny-qwen2", options.seed), rewards)
    trainer.remove_callback(transformers.PrinterCallback)
    for callback in filter(None, (progress if rank == 0 else None, recorder)):
        trainer.add_callback(callback)
    started = time.perf_counter()
    trainer.train()
    summary = progress.summary(time.perf_counter() - started)
    if recorder:
        recorder.write(options.record.with_stem(f"{options.record.stem}-rank{rank}"), trainer.model)
    if options.output and rank == 0:
        options.output.write_text(json.dumps(asdict(summary), indent=2) + "\n")
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def make_trainer(options: argparse.Namespace, workdir: Path, model: Any, rewards: list[Any]) -> Any:
    """Make TRL's trainer; the two algorithms share every argument that is used here."""
    import trl

    from otel_rl.demo import task

    trainer, config = {
        "grpo": (trl.GRPOTrainer, trl.GRPOConfig),
        "rloo": (trl.RLOOTrainer, trl.RLOOConfig),
    }[options.trainer]
    arguments = config(
        output_dir=str(workdir / "checkpoints"),
        max_steps=options.steps,
        seed=options.seed,
        learning_rate=2e-3,
        per_device_train_batch_size=options.batch_size,
        per_device_eval_batch_size=options.batch_size,
        gradient_accumulation_steps=options.grad_accum,
        num_generations=options.num_generations,
        num_iterations=options.iters,
        max_completion_length=task.MAX_RESPONSE,
        beta=options.beta,
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
        # transformers 5.23 adds a forward hook with every generation where this is on: steps grow without end
        gradient_checkpointing=False,
    )
    return trainer(
        model=model,
        reward_funcs=rewards,
        args=arguments,
        train_dataset=task.prompts(256),
        eval_dataset=task.prompts(8),
        processing_class=task.tokenizer(),
    )


if __name__ == "__main__":
    main()
