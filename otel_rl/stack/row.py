"""How one part of the stack does, as `status` shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ANSWERS: Final = "answers"
SILENT: Final = "does not answer"
DEAD: Final = "dead"


@dataclass(frozen=True, slots=True)
class Row:
    """One part."""

    name: str
    state: str
    """``ANSWERS``, ``SILENT`` or ``DEAD``."""
    address: str
    """Where a person or a program reaches it; may be empty."""
    pid: int | None
    """None for a container."""
    age_s: float | None
    """Since it was started; None where it is dead, or a container."""
