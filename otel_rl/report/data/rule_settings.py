"""What a user changed of the rules, and which actions they chose, in a file of their own."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class KlRange:
    """What is usual of the KL to the reference model, nat; not what is right for every training."""

    stalled: float = 0.005
    """Below, the policy hardly moves."""
    healthy_from: float = 0.01
    healthy_to: float = 0.05
    aggressive: float = 0.1
    """Above, the policy moves too fast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSettings:
    """The settings of the rules and the actions."""

    file: str = ""
    """The file that was read; empty if there is none."""
    problems: list[str] = field(default_factory=list)
    """What in it has no effect, and why."""
    off: list[str] = field(default_factory=list)
    """Rules that are switched off; what they would silence stays silent."""
    bounds: dict[str, dict[str, float]] = field(default_factory=dict)
    """Bounds that are not the defaults, by rule and name."""
    advice: dict[str, str] = field(default_factory=dict)
    """Advice that is not the default, by rule."""
    kl: KlRange = field(default_factory=KlRange)
    actions: list[str] = field(default_factory=list)
    """What the run does by itself, each in a sentence."""
