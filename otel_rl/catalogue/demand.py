"""What is asked of a training's telemetry: one row for each number, and how each framework feeds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from otel_rl.records import Labels

Kind = Literal["key", "kept", "stage", "seam", "measured", "never", "open"]
FRAMEWORKS: Final = ("trl", "verl", "roll", "own")
FED: Final[frozenset[Kind]] = frozenset(("key", "kept", "stage", "seam", "measured"))


class Canonical(NamedTuple):
    """A name of the vocabulary, perhaps with labels."""

    name: str
    labels: Labels = ()


@dataclass(frozen=True)
class Feed:
    """How a framework feeds a number."""

    kind: Kind
    names: tuple[str, ...] = ()
    """The framework's own: keys of its log, or functions that are hooked; without any those of the tables."""
    note: str = ""

    @property
    def is_fed(self) -> bool:
        return self.kind in FED


KEY: Final = Feed("key")
"""What the integration's table of names maps; in a loop of one's own what ``otel_rl.record`` sets."""
MEASURED: Final = Feed("measured")


def kept(*names: str, note: str = "") -> Feed:
    """Return a number that goes out under the framework's name."""
    return Feed("kept", names, note)


def key(note: str = "") -> Feed:
    """Return a number that the integration's table of names maps."""
    return Feed("key", note=note)


def stage(note: str = "") -> Feed:
    """Return the time of a stage, whose timers and functions the integration's tables name."""
    return Feed("stage", note=note)


def seam(*names: str, note: str = "") -> Feed:
    """Return what the hooks of these functions measure."""
    return Feed("seam", names, note)


def measured(note: str = "") -> Feed:
    """Return what otel_rl measures without the framework."""
    return Feed("measured", note=note)


def never(reason: str) -> Feed:
    return Feed("never", note=reason)


def missing(why: str) -> Feed:
    """Return a number that could be fed and is not yet."""
    return Feed("open", note=why)


@dataclass(frozen=True)
class Demanded:
    """One number that is asked for."""

    name: str
    """As it is asked for."""
    ours: tuple[Canonical, ...]
    """Where it is; empty: only under the frameworks' own names."""
    feeds: Mapping[str, Feed]
    """By framework; ``own`` is a loop without one."""
    unit: str | None = None
    """None: that of the first name."""
    means: str = ""
    """Empty: the meaning of the first name."""
    needs: str = ""
    """What it needs that a CPU does not have; empty: nothing."""
    where: str = ""
    """Where it is, if no single name says it."""


def number(
    name: str,
    *ours: str | Canonical,
    every: Feed | None = None,
    unit: str | None = None,
    means: str = "",
    needs: str = "",
    where: str = "",
    **feeds: Feed,
) -> Demanded:
    """Return a number that every framework feeds alike, but for those that are given; by default as tables say."""
    names = tuple(one if isinstance(one, Canonical) else Canonical(one) for one in ours)
    found = {framework: feeds.pop(framework, every or KEY) for framework in FRAMEWORKS}
    if feeds:
        raise TypeError(f"no framework: {', '.join(feeds)}")
    return Demanded(name, names, found, unit, means, needs, where)


@dataclass(frozen=True)
class Topic:
    """Numbers of one stage, or of one concern."""

    title: str
    numbers: Sequence[Demanded]
    text: str = ""


@dataclass(frozen=True)
class Named:
    """Numbers that a framework prints."""

    pattern: str
    """Their names; what is in braces stands for each of its parts."""
    note: str = ""
    ours: Mapping[str, str] = field(default_factory=dict)
    """Which hooks feed under a name of ours, without a table of names."""
    is_missing: bool = False
    """Nothing records them."""


@dataclass(frozen=True)
class Trap:
    """A number that is known to be wrong somewhere, or to mean something else."""

    number: str
    """Name of the row that it belongs to."""
    where: str
    wrong: str
