"""A training loop without any framework: three names of otel_rl are enough.

    python examples/custom_loop.py
    otel-rl report

A softmax policy learns by REINFORCE which of ten arms pays. ``step`` is the step's trace, ``stage`` a part of it,
``record`` a number of one's own.
"""

from __future__ import annotations

import math
import random

import otel_rl

ARMS = 10
BATCH = 64


@otel_rl.stage("reward", batch_size=BATCH)
def reward(actions: list[int]) -> list[float]:
    """Arm 7 pays best."""
    return [1.0 - abs(action - 7) / ARMS for action in actions]


def main(steps: int = 200) -> float:
    """Train, and return the mean reward of the last batch."""
    otel_rl.instrument()
    draw = random.Random(0)
    logits = [0.0] * ARMS
    mean = 0.0
    for number in range(1, steps + 1):
        with otel_rl.step(number):
            with otel_rl.stage("sample", batch_size=BATCH):
                weights = [math.exp(logit) for logit in logits]
                actions = draw.choices(range(ARMS), weights, k=BATCH)
            rewards = reward(actions)
            mean = sum(rewards) / BATCH
            with otel_rl.stage("train", batch_size=BATCH) as span:
                total = sum(weights)
                for action, value in zip(actions, rewards, strict=True):
                    for arm in range(ARMS):
                        probability = weights[arm] / total
                        logits[arm] += 0.1 / BATCH * (value - mean) * ((arm == action) - probability) * ARMS
                span.set_attribute("example.best_arm", logits.index(max(logits)))
            otel_rl.record("rl.reward.score", mean)
    return mean


if __name__ == "__main__":
    print(f"mean reward {main():.2f}")
