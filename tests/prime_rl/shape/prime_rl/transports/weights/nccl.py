"""One of the ways of the weights."""

from typing import Any

from tests.prime_rl.world import tick


class NCCLWeightBroadcast:
    def broadcast_weights(self, model: Any, step: Any) -> None:
        tick(1)
