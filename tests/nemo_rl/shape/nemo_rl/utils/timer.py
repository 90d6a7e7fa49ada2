"""Timers, of NeMo-RL's own making."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Timer:
    @contextmanager
    def time(self, label: Any) -> Iterator[None]:
        yield
