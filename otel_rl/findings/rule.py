"""What a rule is, and what it finds."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, TypeVar

from otel_rl.runs.format import brief, count, number, percent, plural, seconds, shorten, size, times

Kind = Literal["time", "learn", "health"]
Severity = Literal["alarm", "warning", "note"]
"""`alarm`: act now, tuning can wait; `warning`: look at it; `note`: nothing is wrong."""
Value = float | int | str
Evidence = TypeVar("Evidence")

WRITERS: Final[dict[str, Callable[[Any], str]]] = {
    "brief": brief,
    "count": count,
    "number": number,
    "percent": percent,
    "seconds": seconds,
    "size": size,
    "times": times,
}
"""How `{name:percent}` in a sentence is written; `{name:plural step}` writes `1 step` or `3 steps`."""
LONGEST: Final = 400
"""Cells of a text in a sentence: a stage may have a prompt for its name."""


def whole(share: float) -> str:
    """Write a limit in a condition."""
    return f"{share * 100:.0f} %"


@dataclass(frozen=True, slots=True)
class Found:
    """What a rule found: the values of its sentence."""

    values: Mapping[str, Value] = field(default_factory=dict)
    """By name: numbers in seconds, bytes, shares 0..1; texts as they stand in the sentence."""
    weight: float = 0.0
    """The heaviest finding of a severity comes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(Generic[Evidence]):
    """One row of a table of rules. Reports, live alerts and Prometheus rules are made from these rows."""

    name: str
    severity: Severity
    reads: tuple[str, ...]
    """Names of the metrics and stages that it reads."""
    condition: str
    """When it holds, in words; docs/findings.md prints it."""
    window: str
    """The steps that it looks at, in words."""
    find: Callable[[Evidence], Found | None]
    sentence: str
    """With the names of values in braces, as in `{share:percent}`."""
    advice: str = ""
    is_fallback: bool = False
    """It speaks only if its table found no alarm and no warning."""
    silenced_by: tuple[str, ...] = ()
    """Rules of its table that find the cause of what it finds: then it is silent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one rule says of this run."""

    rule: str
    """Name of the rule; docs/findings.md lists them."""
    kind: Kind
    severity: Severity
    """`alarm`: act now; `warning`: look at it; `note`: nothing is wrong."""
    sentence: str
    advice: str
    """What to look at or to do next; empty if there is nothing, or if an alarm comes first."""
    values: dict[str, Value]
    """The finite numbers of the sentence: seconds, bytes, shares 0..1."""


class _Sentence(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.startswith("plural "):
            return plural(value, format_spec.removeprefix("plural "))
        write = WRITERS.get(format_spec)
        if isinstance(value, str):
            return shorten(value, LONGEST)
        return format(value, format_spec) if write is None else write(value)


def say(template: str, values: Mapping[str, Value]) -> str:
    """Return a sentence with its values."""
    return _Sentence().vformat(template, (), values)
