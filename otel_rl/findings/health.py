"""Whether a run is healthy: the rules, and what they read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from otel_rl.findings.rule import Found, Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What the rules of health read."""


def _nothing(health: Health) -> Found | None:
    return Found()


HEALTH: Final[tuple[Rule[Health], ...]] = (
    Rule(
        name="healthy",
        severity="note",
        reads=(),
        condition="no other rule of health holds",
        window="all steps",
        find=_nothing,
        sentence="No NaN, no hang, nothing lost.",
        is_fallback=True,
    ),
)
"""In docs/findings.md in this order."""
