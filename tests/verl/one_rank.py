"""Actor and critic of verl's own engine on one rank without Ray, and what torch counts of their operations.

Usage: ``one_rank.py DIRECTORY`` with the variables of ``test_micro_batches.py``; prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
from verl.workers.engine import EngineRegistry
from verl_cpu.inputs import make_model

import otel_rl
from otel_rl import Carrier
from otel_rl import vocabulary as v

PROMPT, RESPONSE, ROWS = 5, 3, 2


def nested(width: int) -> Any:
    """Make rows of ones."""
    return torch.nested.as_nested_tensor([torch.ones(width, dtype=torch.int64)] * ROWS, layout=torch.jagged)


def batch() -> Any:
    """Make what a rank of V1 gets."""
    tensors = {
        "input_ids": nested(PROMPT + RESPONSE), "position_ids": nested(PROMPT + RESPONSE), "prompts": nested(PROMPT),
        "responses": nested(RESPONSE), "loss_mask": nested(RESPONSE), "uid": ["a", "b"],
    }  # fmt: skip
    said = {
        "use_remove_padding": False, "temperature": 1.0, "use_dynamic_bsz": False, "micro_batch_size_per_gpu": ROWS,
    }  # fmt: skip
    return tensordict_utils.get_tensordict(tensors, said)


def loss(model_output: Any, **_: object) -> tuple[Any, dict[str, Any]]:
    """Stand for a loss, of which torch counts no operations."""
    return model_output.get("log_probs", model_output.get("values")).values().float().mean(), {}


def build(path: Path, kind: str) -> Any:
    """Make an engine as a rank does."""
    engine = EngineRegistry.new(
        model_type=kind,
        backend="fsdp2",
        model_config=HFModelConfig(
            path=str(path),
            model_type=kind,
            enable_gradient_checkpointing=False,
            override_config={"attn_implementation": "eager"},
        ),
        engine_config=FSDPEngineConfig(
            strategy="fsdp2",
            use_torch_compile=False,
            param_offload=kind == "language_model",
            optimizer_offload=kind == "language_model",
        ),
        optimizer_config=FSDPOptimizerConfig(total_training_steps=1),
        checkpoint_config=CheckpointConfig(),
    )
    engine.initialize()
    return engine


def main() -> None:
    """Compute log-probabilities and an update of the actor, values and an update of the critic."""
    otel_rl.instrument()
    torch.distributed.init_process_group("gloo")
    make_model(Path(sys.argv[1]))
    engines = {kind: build(Path(sys.argv[1]), kind) for kind in ("language_model", "value_model")}
    counted: dict[str, Any] = {}
    sent = 0
    for kind, stage in (("language_model", v.LOGPROB), ("value_model", v.VALUE)):
        engine = engines[kind]
        counter = FlopCounterMode(display=False)
        with Carrier("job", "abc", "driver", "train 1", f"00-{7:032x}-{8:016x}-01").use(), counter:
            with otel_rl.stage(stage), engine.eval_mode():
                engine.infer_batch(batch())
            once = counter.get_total_flops()
            with otel_rl.stage(v.TRAIN), engine.train_mode():
                engine.train_batch(batch(), loss)
            if kind == "language_model":
                with otel_rl.stage(v.SYNC):
                    weights, _ = engine.get_per_tensor_param()
                    sent = sum(one.numel() * one.element_size() for _, one in weights)
                with otel_rl.stage(v.CHECKPOINT):
                    engine.save_checkpoint(str(Path(sys.argv[1]).parent / "checkpoint"))
        counted[kind] = once, counter.get_total_flops() - once
    otel_rl.flush()
    print(json.dumps({**counted, "sent": sent}))


main()
