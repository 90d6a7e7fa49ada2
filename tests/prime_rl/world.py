"""What stands for the rest of the world of prime-rl: a clock, configurations, episodes and groups."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any

CLOCK: list[Callable[[float], None]] = [lambda ms: None]


def tick(ms: float) -> None:
    """Let time pass; a test puts its clock here."""
    CLOCK[0](ms)


class TrainerConfig(Namespace):
    """Stands for that of the trainer."""


class OrchestratorConfig(Namespace):
    """Stands for that of the orchestrator."""


def trainer_config() -> TrainerConfig:
    """Make what is read of it."""
    optimizer = Namespace(lr=1e-6, max_norm=1.0)
    return TrainerConfig(model=Namespace(name="org/Tiny-1B"), optim=optimizer, max_steps=2, output_dir="outputs")


def orchestrator_config() -> OrchestratorConfig:
    """Make what is read of it."""
    return OrchestratorConfig(model=Namespace(name="org/Tiny-1B"))


def episode(group: object, version: int, reward: float, error: str = "") -> Any:
    """Make an episode with one trace of five tokens of the policy."""
    errors = [Namespace(type=error)] if error else []
    work = Namespace(policy=Namespace(start=version))
    trace = Namespace(num_output_tokens=5, errors=errors, reward=reward)
    return Namespace(traces=[trace], errors=[], group=Namespace(id=str(group)), run=Namespace(work=work))


def group(kind: str = "train", version: int = 0, episodes: int = 2) -> Any:
    """Make a group whose episodes are to be scheduled."""
    return Namespace(kind=kind, target_episodes=episodes, policy_version_at_start=version, emitted=0)
