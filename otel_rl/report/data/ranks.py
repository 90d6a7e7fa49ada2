"""Ranks as data."""

from __future__ import annotations

from dataclasses import dataclass

StepKey = tuple[str, str, int]
"""Attempt, loop, and number of a step."""


@dataclass(frozen=True, slots=True, order=True)
class Rank:
    """One process of the training, by role and rank."""

    role: str
    rank: int

    def __hash__(self) -> int:
        return self.rank  # what a dataclass makes takes three times as long, and a report asks a million times


@dataclass(frozen=True, slots=True, kw_only=True)
class OfRank:
    """A row about one rank."""

    role: str
    rank: int

    @property
    def who(self) -> Rank:
        return Rank(self.role, self.rank)
