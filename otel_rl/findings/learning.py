"""Whether the model learns: the rules, and the numbers of the steps that they read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from otel_rl.findings.rule import Found, Rule


@dataclass(frozen=True, slots=True)
class Numbers:
    """One number over the steps, in their order."""

    name: str
    """Of the metric."""
    qualifiers: Mapping[str, str]
    """Attributes that distinguish it from others of the same name."""
    steps: Sequence[int | None]
    values: Sequence[float]
    """One per step; NaN and Inf as recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """What the rules of learning read."""

    series: Sequence[Numbers] = field(default_factory=list)


def _nothing(learning: Learning) -> Found | None:
    return None if learning.series else Found()


LEARN: Final[tuple[Rule[Learning], ...]] = (
    Rule(
        name="learning_unknown",
        severity="note",
        reads=(),
        condition="no number of any step was recorded",
        window="all steps",
        find=_nothing,
        sentence="No reward and no loss were recorded.",
        is_fallback=True,
    ),
)
"""In docs/findings.md in this order."""
