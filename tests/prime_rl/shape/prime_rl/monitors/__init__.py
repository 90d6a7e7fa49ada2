"""Where all numbers go."""

from typing import Any


async def setup(
    wandb: Any = None,
    prime: Any = None,
    file: Any = None,
    *,
    output_dir: Any,
    run_config: Any = None,
    train_env_names: Any = None,
    eval_env_names: Any = None,
    overview_flavor: Any = "rl",
) -> None:
    pass


async def log(data: Any, step: Any, kind: Any = "train", subset: Any = "effective") -> None:
    pass
