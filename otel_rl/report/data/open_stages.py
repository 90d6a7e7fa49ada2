"""Where the processes are, as a report says it: stages without an end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCollective:
    """The collective that a rank is inside: who else has not left the same one is found by group and sequence."""

    operation: str
    group: str | None
    """Null where the process group is not known."""
    group_size: int | None
    sequence: int | None
    """Which collective of its group, from 1; null for what has no place in its order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStage:
    """A stage without an end: where a rank is now, or was last seen, at most a second before it died."""

    attempt: str
    """Empty of a rank that does not know it yet."""
    role: str
    rank: int
    stage: str
    inside: list[str]
    """The open stages around it, outermost first."""
    since_ns: int
    open_s: float
    """Until now for a living process; until its last record, at least four fifths of it, for a dead one."""
    longest_s: float | None
    """Longest call of such a stage that ended, on any rank; null where none is known."""
    calls_known: bool
    """False of a rank that does not know its attempt yet: nobody tells how long the calls of it that ended took."""
    is_alive: bool
    is_hanging: bool
    """Of a living process: open for at least 10 s, and for three times as long as the longest call that ended."""
    iteration: int | None
    collective: OpenCollective | None
    """Null where the stage is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A process that began with the run, on a host of it, and is in no run: as a rank before its process group is made.

    Which run it belongs to nobody knows yet, so that no other number of this report counts it.
    """

    path: str
    """Its own directory, for a report on it alone."""
    open_stages: list[OpenStage]
