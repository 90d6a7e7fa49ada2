"""What is recorded of the rewards of single samples, whoever sees them."""

from __future__ import annotations

from typing import Any, Final

from otel_rl import vocabulary
from otel_rl.records import Labels, Measured

DIGITS: Final = 6
"""The 0.2 of 32 bits is above 0.2, and would count in the next bucket."""


def distribution_of(rewards: Any, labels: Labels) -> tuple[Measured, ...]:
    """Return what adds an array of rewards to their histogram; what is not finite is in no bucket.

    Emits: ``rl.reward.distribution`` (histogram).
    """
    import numpy as np

    finite = rewards[np.isfinite(rewards)].astype(float)
    exact = np.round(finite, DIGITS).tolist()
    return (Measured(vocabulary.REWARD_DISTRIBUTION, exact, labels),) if exact else ()
