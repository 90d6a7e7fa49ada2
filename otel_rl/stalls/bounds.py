"""How long a stage may take before it is a stall: by its own history, and what the user sets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from otel_rl.config import Config, ConfigurationError

FEWEST_CALLS: Final = 3
"""With fewer calls that ended there is no history."""
UNKNOWN_S: Final = 600.0
"""The bound of a stage without a history."""
SETUP_S: Final = 1800.0
"""The bound outside of steps: models are loaded, engines compile."""


class Bound(NamedTuple):
    """What a stage is held against."""

    seconds: float
    normal_s: float | None
    """Median duration of its ended calls; None without a history."""


@dataclass(frozen=True)
class StallBounds:
    """The user's bounds; a stage that is named has its own, in place of the general one."""

    factor: float = 6.0
    after_s: float = 30.0
    factors: Mapping[str, float] = field(default_factory=dict)
    afters_s: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> StallBounds:
        """Read ``OTEL_RL_STALL_FACTOR`` and ``OTEL_RL_STALL_AFTER``.

        Raises:
            ConfigurationError: one has an impossible value.
        """
        config = Config.from_env(environ)
        factors, afters_s = dict(config.stall_factor), dict(config.stall_after)
        return cls(factors.pop("", cls.factor), afters_s.pop("", cls.after_s), factors, afters_s)

    @classmethod
    def for_readers(cls) -> StallBounds:
        """Return the user's bounds, or the defaults if a setting is invalid: whoever reads a run needs no settings."""
        try:
            return cls.from_env()
        except ConfigurationError:
            return cls()

    def of(self, name: str, calls: tuple[int, float] | None, *, is_in_step: bool) -> Bound:
        """Return the bound of a stage.

        Args:
            name: of the stage.
            calls: how many of its kind have ended, and their median duration, s; None without any.
            is_in_step: whether its process is in a step.
        """
        after_s = _own(self.afters_s, name)
        if calls is not None and calls[0] >= FEWEST_CALLS:
            ratio = _own(self.factors, name) or self.factor
            least_s = self.after_s if after_s is None else after_s
            return Bound(max(ratio * calls[1], least_s), calls[1])
        if after_s is None:
            after_s = max(UNKNOWN_S if is_in_step else SETUP_S, self.after_s)
        return Bound(after_s, None)


def _own(values: Mapping[str, float], name: str) -> float | None:
    """Return the value that is set for a stage; that for ``rl.reward`` counts also for ``rl.reward parse_answer``."""
    return values.get(name, values.get(name.partition(" ")[0]))
