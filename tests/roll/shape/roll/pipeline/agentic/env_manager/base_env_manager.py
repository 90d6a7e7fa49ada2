"""What the managers of environments have in common."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class RolloutCache:
    env_id: int
    group_id: int
    tag: str
    history: list[dict] = field(default_factory=list)
    truncated: bool = False
    terminated: bool = False
    step: int = 0


class BaseEnvManager:
    def __init__(self, *args, **kwargs):
        self.current_step, self.running, self.trace_meta = -1, False, None

    def update_step(self, global_step, trace_meta=None):
        self.current_step, self.trace_meta = global_step, trace_meta
