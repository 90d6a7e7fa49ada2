"""A rank with Megatron."""

from __future__ import annotations

from typing import Any


class MegatronEngine:
    def save(self, meta: Any): ...
