"""What could not be made of a report: an error of ours costs the part that it is in, and is counted there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from otel_rl.guard import guard
from otel_rl.report.data.finding import Part, Unmade

T = TypeVar("T")
Default = TypeVar("Default")


class Making:
    """Makes the parts of one report, and remembers those that failed."""

    def __init__(self) -> None:
        self.unmade: list[Unmade] = []

    def make(self, part: Part, name: str, default: Default, function: Callable[..., T], *arguments: Any) -> T | Default:
        """Return what a function makes, or the default if it fails; the error is logged with its traceback."""
        made: T | Default = default
        missing = Unmade(part=part, name=name)
        is_made = False
        with guard(f"make the {part} {name} of a report"):
            made, is_made = function(*arguments), True
        if not is_made and missing not in self.unmade:
            self.unmade.append(missing)
        return made
