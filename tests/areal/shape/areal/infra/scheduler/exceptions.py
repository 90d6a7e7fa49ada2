"""What a scheduler raises."""

from __future__ import annotations


class EngineCallError(Exception):
    """A call raised in its worker; its class is not told."""
