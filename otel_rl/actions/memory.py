"""What the actions of this process are, and how far they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from otel_rl.process.memory import Memory
from otel_rl.runs.action_settings import Action

if TYPE_CHECKING:
    from otel_rl.actions.action_plan import ActionPlan


@dataclass(eq=False)
class Acting(Memory):
    """The actions that the user chose; nothing of them is done while there is no plan."""

    shared: list[Action] | None = None
    """The actions that rank 0 shares with all ranks; None without a process group."""
    store: Any = None
    """The store of the process group."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """By name in the vocabulary, what a trainer calls a number in its log."""
    plan: ActionPlan | None = None
    """The plan of the open training loop; None without actions, and then hooks do nothing."""
    loops: int = 0
    """How many training loops had a plan before."""
    read: int = 0
    """How many entries of the trainer's log were read."""
    is_saved: bool = False
    """Whether the trainer saves the step that ends itself."""


acting = Acting.keep("acting")
