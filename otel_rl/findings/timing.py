"""Where the time goes, and what would gain most: the rules, and what they read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from otel_rl.findings.rule import Found, Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What the rules of time read."""

    sentence: str = ""


def _sentence(timing: Timing) -> Found | None:
    return Found({"sentence": timing.sentence})


TIME: Final[tuple[Rule[Timing], ...]] = (
    Rule(
        name="largest",
        severity="note",
        reads=(),
        condition="no other rule of time holds",
        window="the averaged steps",
        find=_sentence,
        sentence="{sentence}",
        is_fallback=True,
    ),
)
"""In docs/findings.md in this order."""
