"""Tests of what wakes the flusher."""

from __future__ import annotations

import sys
import threading
from typing import Any

from otel_rl.flusher.thread import _Wake as Wake


def test_it_is_set_until_it_was_waited_for() -> None:
    """However often it was set."""
    wake = Wake()
    assert not wake.wait(0)
    for _ in range(3):
        wake.set()
    assert [True, False] == [wake.wait(0), wake.wait(0)]


def test_it_wakes_another_thread() -> None:
    """Which sleeps already."""
    wake, woken = Wake(), threading.Event()
    threading.Thread(target=lambda: wake.wait(3600) and woken.set(), daemon=True).start()
    wake.set()
    assert woken.wait(60)


def test_it_may_be_set_while_it_is_being_set() -> None:
    """As a signal handler would: at every call and return inside."""
    wake, inside, over = Wake(), [], threading.Event()

    def again(frame: Any, event: str, argument: Any) -> None:
        inside.append(event)
        wake.set()

    def work() -> None:
        sys.setprofile(again)
        wake.set()
        sys.setprofile(None)
        over.set()

    threading.Thread(target=work, daemon=True).start()
    assert over.wait(20)
    assert {"call", "c_call", "c_return", "return"} == set(inside)
    assert [True, False] == [wake.wait(0), wake.wait(0)]
