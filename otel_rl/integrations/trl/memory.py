"""What the hooks on TRL remember from one call to the next."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from otel_rl.hooks import Memory

if TYPE_CHECKING:
    from otel_rl.integrations.trl.rewards import Scores
    from otel_rl.integrations.trl.rollouts import TrlRollout
    from otel_rl.integrations.trl.scored import Generated
    from otel_rl.integrations.trl.trainer_metrics import Reader
    from otel_rl.trace.stage import Stage


@dataclass(eq=False)
class Rollouts(Memory):
    """The rollouts that are being made, scored and consumed."""

    begun: int = 0
    """How many have begun."""
    open: dict[str, TrlRollout] = field(default_factory=dict)
    """The one that is being consumed, by mode: an evaluation does not end that of the training."""
    mode: str = ""
    """Whether the one that is being made and scored is of training or of an evaluation; empty between them."""
    rewarding: dict[Any, Stage] | None = None
    """Open reward functions by TRL's own timing context, while rewards are computed."""
    unanswered: Counter[str] = field(default_factory=Counter)
    """Answers of the rollout to which a reward function gave no reward, by function."""
    scored: dict[str, list[Scores]] = field(default_factory=dict)
    """Rewards of the rollouts of the open step, or evaluation, by mode."""
    generated: Generated | None = None
    """What the rollout that is being scored generated."""
    losses: list[Any] = field(default_factory=list)
    """Losses of the micro-batches of the open step."""
    logged: frozenset[str] | None = None
    """Names of the trainer's own metrics while it logs."""
    readers: dict[tuple[int, str], Reader] = field(default_factory=dict)
    """Which entries of a trainer's own metrics have been read, by its id and the mode."""


rollouts = Rollouts.keep("rollouts")
