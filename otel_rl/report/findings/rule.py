"""What a rule is, what it finds, and how its sentence is written."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from otel_rl import vocabulary as v
from otel_rl.report.data.finding import Severity, Value
from otel_rl.report.data.ranks import Rank
from otel_rl.runs.format import brief, count, listed, number, percent, plural, seconds, shorten, size, times
from otel_rl.runs.role_words import role_in_words

Rows = TypeVar("Rows")

LONGEST: Final = 400
"""Cells of a text in a sentence: a stage may have a prompt for its name."""
SEVERITIES: Final[tuple[Severity, ...]] = ("alarm", "warning", "note")
OPTIONAL: Final = re.compile(r"\[([^\]]*)\]")
"""What is left out of a sentence if it is not known."""
NO_STAGE: Final = (v.OTHER, v.COMM)
PLURAL: Final = ("checkpoints", "log-probabilities", "rewards", "values")
"""Names that are followed by "take", and not by "takes"."""


def stage_name(stage: str) -> str:
    return {v.OTHER: "what runs under no stage", v.COMM: "collectives under no stage"}.get(stage, stage)


def inside(stage: str) -> str:
    return "under no stage" if stage in NO_STAGE else f"in {stage}"


def change(size_by: float) -> str:
    return f"{'+' if size_by >= 0 else '-'}{size(abs(size_by))}"


WRITERS: Final[dict[str, Callable[[Any], str]]] = {
    "brief": brief,
    "change": change,
    "count": count,
    "inside": inside,
    "number": number,
    "percent": percent,
    "seconds": seconds,
    "size": size,
    "stage": stage_name,
    "text": str,
    "times": times,
}
"""How `{name:percent}` in a sentence is written."""


def whole(share: float) -> str:
    """Write a limit in a condition."""
    return f"{share * 100:.0f} %"


def rank_name(rank: Rank, ranks: Iterable[Rank]) -> str:
    """Name one of all ranks: by its role only if there are several roles, or it is no rank."""
    role = "rank" if {one.role for one in ranks} <= {rank.role} else role_in_words(rank.role)
    return f"{role} {rank.rank}"


def upper(text: str) -> str:
    return text[:1].upper() + text[1:]


@dataclass(frozen=True, slots=True)
class Found:
    """What a rule found: the values of its sentence."""

    values: Mapping[str, Value | None] = field(default_factory=dict)
    """By name: numbers in seconds, bytes, shares 0..1; names of ranks, stages and others; None is not known."""
    weight: float = 0.0
    """The heaviest finding of a severity comes first."""
    step: int | None = None
    since: int | None = None
    rank: Rank | None = None
    stage: str | None = None
    """Where it is seen, as in ``Finding``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(Generic[Rows]):
    """One rule. Reports, live alerts and Prometheus rules are made from the tables of rules."""

    name: str
    severity: Severity
    reads: tuple[str, ...]
    """Names of the metrics and stages that it reads."""
    condition: str
    """When it holds, in words; docs/findings.md prints it."""
    window: str
    """The steps that it looks at, in words."""
    find: Callable[..., Found | None]
    """Takes the rows; what it takes only by name are its bounds, which a user may change."""
    sentence: str
    """A template for ``say``."""
    advice: str = ""
    """Another one."""
    is_fallback: bool = False
    """It speaks only if its table found no alarm and no warning."""
    silenced_by: tuple[str, ...] = ()
    """Rules of its table that find the cause of what it finds: then it is silent."""

    @property
    def bounds(self) -> Mapping[str, float]:
        """Return the bounds that a user may change, with their defaults."""
        return getattr(self.find, "__kwdefaults__", None) or {}


def rule(severity: Severity, **parts: Any) -> Callable[[Callable[[Rows], Found | None]], Rule[Rows]]:
    """Make a rule of the function below, which has its name; the parts are the other fields of `Rule`.

    The function's arguments that are given by name only are bounds, which a user may change.
    """
    return lambda find: Rule(name=find.__name__, severity=severity, find=find, **parts)


def table(*rules: Rule[Rows]) -> tuple[Rule[Rows], ...]:
    """Return rules in the order of a report: alarms before warnings before notes, and else as they come."""
    return tuple(sorted(rules, key=lambda rule: SEVERITIES.index(rule.severity)))


def _is_one(value: Value) -> bool:
    if isinstance(value, str):
        return value not in PLURAL
    return (len(value) if isinstance(value, list) else value) == 1


def _write(value: Value, spec: str) -> str:
    if isinstance(value, list):
        return listed([_write(one, spec) for one in value])
    if spec in WRITERS:
        return WRITERS[spec](value)
    return value if isinstance(value, str) else format(value, spec)


class _Sentence(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if "|" in format_spec:
            return format_spec.split("|")[not _is_one(value)]
        if format_spec[:1].isupper():
            return upper(self.format_field(value, format_spec.lower()))
        if format_spec.startswith("plural "):
            return plural(value, format_spec.removeprefix("plural "))
        return shorten(_write(value, format_spec), LONGEST)


def say(template: str, values: Mapping[str, Value | None]) -> str:
    """Return a sentence: a template with its values.

    `{share:percent}` is written by one of `WRITERS`, `{steps:plural step}` as `1 step` or `3 steps`, and each of a
    list. `{ranks:is|are}` chooses by number: the first word is that of 1, of a list with one name, and of True.
    `{stage:Text}` begins with a capital. `[ in {stage}]` is left out if a value in it is None or empty.
    """
    sentence = _Sentence()

    def kept(part: re.Match[str]) -> str:
        names = [name for _, name, _, _ in sentence.parse(part[1]) if name]
        return "" if any(values.get(name) in (None, "", []) for name in names) else part[1]

    return sentence.vformat(OPTIONAL.sub(kept, template), (), values)
