"""What stands for the rest of the world of NeMo-RL: a clock, calls of actors and a configuration."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any

from otel_rl.process.carrier import Carrier

CLOCK: list[Callable[[float], None]] = [lambda ms: None]


def tick(ms: float) -> None:
    """Let time pass; a test puts its clock here."""
    CLOCK[0](ms)


def call(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a method of an actor, which works below the caller."""
    carrier = Carrier.current()
    if carrier is None:
        return method(*args, **kwargs)
    with carrier.use():
        return method(*args, **kwargs)


class Batch(dict[str, Any]):
    """Stands for a batch of so many samples."""

    @property
    def size(self) -> int:
        """So many samples."""
        return len(self["task_name"])


def config(**changes: Any) -> Any:
    """Make what is read of a configuration, and what goes wrong.

    ``rewards`` and ``engine`` say of the next calls whether they fail, from the last; ``spreads`` are those of the
    rewards in the first group of the next batches.
    """
    generation = {"max_new_tokens": 64, "temperature": 1.0}
    policy = {"model_name": "org/Tiny-1B", "train_global_batch_size": 4, "max_grad_norm": 1.0, "generation": generation}
    return Namespace(
        policy={**policy, "optimizer": {"kwargs": {"lr": 1e-6}}},
        grpo={"num_prompts_per_step": 2, "num_generations_per_prompt": 2, "max_num_steps": 2}
        | {"use_dynamic_sampling": "spreads" in changes},
        loss_fn=Namespace(
            reference_policy_kl_penalty=changes.pop("kl", 0.01), use_kl_in_reward=changes.pop("kl_in_reward", False)
        ),
        checkpointing={"checkpoint_dir": "results"},
        cluster={"num_nodes": 1, "gpus_per_node": 2},
        **{"spreads": [], "rewards": [], "engine": [], "async_rollouts": False, "restored": False, **changes},
    )
