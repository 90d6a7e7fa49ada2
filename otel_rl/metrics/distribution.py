"""What is recorded of the rewards of single samples, whoever sees them."""

from __future__ import annotations

from typing import Any

from otel_rl import vocabulary
from otel_rl.records import Labels, Measured


def distribution_of(rewards: Any, labels: Labels) -> tuple[Measured, ...]:
    """Return what adds an array of rewards to their histogram; what is not finite is in no bucket.

    Emits: ``rl.reward.distribution`` (histogram).
    """
    import numpy as np

    finite = rewards[np.isfinite(rewards)].tolist()
    return (Measured(vocabulary.REWARD_DISTRIBUTION, finite, labels),) if finite else ()
