"""TRL's GRPO with one more line than usual.

    python examples/grpo.py                      one process
    torchrun --nproc_per_node=2 examples/grpo.py  two ranks
    otel-rl report

Model and tokenizer are made on the spot (``otel_rl.demo.task``); with a model of your own only those lines change.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import otel_rl
from otel_rl.demo import task


def main(steps: int = 20) -> None:
    """Train."""
    otel_rl.instrument()  # the one line

    from trl import GRPOConfig, GRPOTrainer

    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=task.model(Path(folder) / "tiny", seed=0),
            processing_class=task.tokenizer(),
            reward_funcs=[task.parity],
            train_dataset=task.prompts(64),
            args=GRPOConfig(
                output_dir=folder,
                max_steps=steps,
                per_device_train_batch_size=8,
                num_generations=4,
                max_completion_length=task.MAX_RESPONSE,
                report_to=["otel"],  # not needed, but it may be named
                save_strategy="no",
                use_cpu=True,
                bf16=False,
                disable_tqdm=True,
            ),
        )
        trainer.train()


if __name__ == "__main__":
    main()
