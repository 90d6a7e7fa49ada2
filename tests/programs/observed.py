"""A loop without a framework on gloo ranks: sharded models, rollouts that are shown, NaN on one rank.

Writes what was read of the models into ``shapes-<rank>.json`` of the working directory.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from transformers import Qwen2Config, Qwen2ForCausalLM

import otel_rl
from otel_rl.observing.network import formula_of, read
from tests.programs.group import leave

SMALL = {
    "vocab_size": 20, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "tie_word_embeddings": False,
}  # fmt: skip
STEPS = 6
BAD_STEP, BAD_RANK = 4, 1


def model() -> Any:
    """Make the same model on every rank."""
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(**SMALL))


def wrapped() -> dict[str, Any]:
    """Wrap it in every way."""
    sharded = model()
    for layer in sharded.model.layers:
        fully_shard(layer)
    cpu = torch.device("cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fsdp1 = FullyShardedDataParallel(model(), use_orig_params=True, device_id=cpu)
        flat = FullyShardedDataParallel(model(), use_orig_params=False, device_id=cpu)
    return {
        "plain": model(),
        "ddp": DistributedDataParallel(model()),
        "fsdp2": fully_shard(sharded),
        "fsdp1": fsdp1,
        "flat": flat,
    }


def seen(one: Any) -> dict[str, Any]:
    """Say what is read of a model."""
    found = read(one)
    return {
        "shapes": sorted(list(parameter.shape) for parameter in found.parameters),
        "flops": formula_of(found).count([5, 9], None, is_training=True),
        "shared_by": found.shared_by,
    }


def main() -> None:
    """Train a few steps."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    otel_rl.instrument(["torch"])
    models = wrapped()
    Path(f"shapes-{rank}.json").write_text(json.dumps({name: seen(one) for name, one in models.items()}))
    policy = models["ddp"]
    draw = torch.Generator().manual_seed(rank)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for number in range(1, STEPS + 1):
        ids, mask = torch.randint(1, 20, (4, 12), generator=draw), torch.ones(4, 12, dtype=torch.long)
        mask[1, 7:] = 0
        with otel_rl.step(number):
            with otel_rl.stage("sample"):
                logprobs = -torch.rand(4, 12, generator=draw)
                otel_rl.observe(batch={"input_ids": ids, "attention_mask": mask, "rollout_logprobs": logprobs})
            with otel_rl.stage("train.forward"):
                loss = policy(input_ids=ids, attention_mask=mask, labels=ids).loss
                advantages = torch.zeros(4)
                if (number, rank) == (BAD_STEP, BAD_RANK):
                    advantages[2] = torch.nan
                batch = {"input_ids": ids, "attention_mask": mask, "loss": loss, "advantages": advantages}
                otel_rl.observe(model=policy, batch=batch)
            if number == 1:
                otel_rl.observe(batch={"rewards": distribute_tensor(torch.zeros(4), mesh, [Shard(0)])})
            loss.backward()
    otel_rl.uninstrument()
    leave()


if __name__ == "__main__":
    sys.exit(main())
