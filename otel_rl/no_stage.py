"""A stage where nothing may be recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class NoStage:
    """What ``stage`` returns while ``torch.compile`` traces: nothing that a graph would have to break for."""

    def __enter__(self) -> NoStage:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def set_attribute(self, key: str, value: object) -> None:
        """Ignore the attribute."""

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Ignore the attributes."""
