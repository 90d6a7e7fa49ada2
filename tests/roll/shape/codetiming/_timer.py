"""The timer of codetiming 1.4: its place, its name and its fields."""

from __future__ import annotations

import time
from contextlib import ContextDecorator
from dataclasses import dataclass
from typing import Any


@dataclass
class Timer(ContextDecorator):
    name: str | None = None
    text: Any = "Elapsed time: {:0.4f} seconds"
    initial_text: Any = False
    logger: Any = None
    last: float = float("nan")

    def __enter__(self) -> Timer:
        self.began = time.perf_counter()
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.last = time.perf_counter() - self.began
