"""Since when something is so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

FIRST: Final = 3
"""It has to hold in this many values in a row to have begun."""
SHARE: Final = 0.9


def onset(flags: Sequence[bool], share: float = SHARE) -> int | None:
    """Return the first index from which flags hold to the end, in all but a few places; None if they do not.

    Args:
        flags: whether it holds, by step.
        share: of the flags from the onset on that must hold; at the end, those of the last ones, too.
    """
    first = min(FIRST, len(flags))
    holds, found = 0, None
    for index in range(len(flags) - 1, -1, -1):
        holds += flags[index]
        rest = len(flags) - index
        if flags[index] and holds >= share * rest and all(flags[index : index + first]):
            found = index
        if rest == first and holds < first:
            return None
    return found


def first_above(values: Sequence[float], limit: float) -> int | None:
    """Return the index of the first value of at least this limit."""
    return next((index for index, value in enumerate(values) if value >= limit), None)
