"""Chooses the arithmetic of many requests: in C where that was built, else in Python, to the same numbers."""

from __future__ import annotations

from types import ModuleType
from typing import Final

from otel_rl.requests import native
from otel_rl.rollouts import bulk_native, bulk_plain

bulk: Final[ModuleType] = bulk_plain if native is None else bulk_native
