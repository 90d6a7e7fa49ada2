"""Chooses the arithmetic of many requests: in C where that was built, else in Python, to the same numbers."""

from __future__ import annotations

from types import ModuleType
from typing import Final

from otel_rl.requests import bulk_native, bulk_plain
from otel_rl.requests.queue import native

bulk: Final[ModuleType] = bulk_plain if native is None else bulk_native
