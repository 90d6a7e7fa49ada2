"""Advantages."""

from typing import Any

from tests.slime.world import tick


def compute_advantages_and_returns(args: Any, rollout_data: Any) -> Any:
    tick(1)
