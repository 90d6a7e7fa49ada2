"""The end of a driver: Ray ends it after the command, and who reads too early sees a run that goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.journal.read import Run
from otel_rl.report.read.single_controller.guest_steps import drivers_of

LONGEST_S: Final = 2.0
"""A driver says so within half a second, or is killed; a job that goes on elsewhere says nothing."""
PAUSE_S: Final = 0.1


def once_over(find: Callable[[], list[Run]]) -> list[Run]:
    """Return the runs that a function finds, as soon as no driver among them is in its loop."""
    until = time.monotonic() + LONGEST_S
    runs = find()
    while any(map(_is_in_loop, runs)) and time.monotonic() < until:
        time.sleep(PAUSE_S)
        runs = find()
    return runs


def _is_in_loop(run: Run) -> bool:
    """Return whether a driver lives that has not begun its tear-down."""
    living = [journal for journal in drivers_of(run) if journal.alive()]
    opened = Run(run.path, living).open_stages()
    return len({view.journal.identity.writer for view in opened if view.name == v.TEARDOWN}) < len(living)
