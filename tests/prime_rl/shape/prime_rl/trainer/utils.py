"""Clipping."""

from typing import Any

from tests.prime_rl.world import tick


def clip_grad_norm_(manager: Any, model: Any, max_norm: Any, ep_enabled: Any) -> Any:
    tick(1)
