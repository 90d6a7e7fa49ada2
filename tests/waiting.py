"""Waiting for what other threads and programs do, however busy the machine is.

A program that ends by itself is waited for without a limit: pytest's own ``timeout`` is there for one that hangs. What
becomes so at some time is waited for by ``wait_for``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")
PATIENCE_S = 120.0


def patience(seconds: float = PATIENCE_S) -> Iterator[None]:
    """Yield every 20 ms until so many seconds are over on a machine that has a core for each program.

    Where more programs want to run than there are cores, each gets a share of one: a second counts as this share.
    """
    cores, now = len(os.sched_getaffinity(0)), time.monotonic()
    while seconds > 0:
        yield
        time.sleep(0.02)
        before, now = now, time.monotonic()
        seconds -= (now - before) * min(1.0, cores / max(os.getloadavg()[0], 1.0))


def wait_for(answer: Callable[[], T], seconds: float = PATIENCE_S) -> T:
    """Call until the answer is true, and return it, or the last one when all patience is gone."""
    for _ in patience(seconds):
        if found := answer():
            return found
    return answer()
