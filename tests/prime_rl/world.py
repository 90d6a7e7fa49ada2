"""What stands for the rest of the world of prime-rl: a clock, configurations, episodes and groups."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from importlib import import_module
from typing import Any

CLOCK: list[Callable[[float], None]] = [lambda ms: None]


def tick(ms: float) -> None:
    """Let time pass; a test puts its clock here."""
    CLOCK[0](ms)


def part(name: str) -> Any:
    """Import a module of the shape."""
    return import_module(f"prime_rl.{name}")


class TrainerConfig(Namespace):
    """Stands for that of the trainer."""


class OrchestratorConfig(Namespace):
    """Stands for that of the orchestrator."""


def trainer_config(steps: int = 2) -> TrainerConfig:
    """Make what is read of it."""
    optimizer = Namespace(lr=1e-6, max_norm=1.0)
    return TrainerConfig(model=Namespace(name="org/Tiny-1B"), optim=optimizer, max_steps=steps, output_dir="outputs")


def orchestrator_config() -> OrchestratorConfig:
    """Make what is read of it."""
    return OrchestratorConfig(model=Namespace(name="org/Tiny-1B"))


def episode(group: object, version: int, reward: float, error: str = "", agent: str = "agent") -> Any:
    """Make an episode with one trace of five tokens of the policy."""
    errors = [Namespace(type=error)] if error else []
    work = Namespace(policy=Namespace(start=version))
    trace = Namespace(num_output_tokens=5, errors=errors, has_error=bool(error), reward=reward)
    trace.agent = Namespace(name=agent, trainable=True)
    known = {"group": Namespace(id=str(group)), "run": Namespace(work=work)}
    made = Namespace(traces=[trace], errors=[], ok=not error, **known)
    made.id = f"episode-{id(made)}"
    return made


def group(kind: str = "train", version: int = 0, episodes: int = 2) -> Any:
    """Make a group whose episodes are to be scheduled."""
    return Namespace(kind=kind, target_episodes=episodes, policy_version_at_start=version, emitted=0)


class Episodes(list[Any]):
    """What arrived since the last batch, or is shipped with one."""

    def __init__(self, *episodes: Any, cancelled: set[str] | None = None) -> None:
        super().__init__(episodes)
        self.cancelled = cancelled or set()


def sample() -> Any:
    """Make a sample of two tokens of the prompt, two of the policy, and one of the environment between them."""
    return Namespace(token_ids=[1, 2, 3, 4, 5], mask=[False, False, True, False, True])


def batch(cohort: list[Any], arrived: list[Any], cancelled: set[str] | None = None) -> Any:
    """Make a batch with one sample of each episode that is shipped."""
    window = Episodes(*arrived, cancelled=cancelled)
    return Namespace(samples=[sample() for _ in cohort], cohort=Episodes(*cohort), episodes=window)
