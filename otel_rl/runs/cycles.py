"""How often programs that read runs look for cycles among their objects."""

from __future__ import annotations

import gc
from typing import Final

THRESHOLDS: Final = (100_000, 50, 100)


def collect_seldom() -> None:
    """Look for cycles seldom: a report makes many objects that stay, and would spend a fifth of its time on it."""
    gc.set_threshold(*THRESHOLDS)
