"""What a command that recorded says at its end: the report, or only its head where all of it takes too long."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Final

from rich.console import Console

from otel_rl.cli.beside import start_without_signals
from otel_rl.cli.console import complain, fallback_lines, stderr
from otel_rl.cli.shipping import refusals
from otel_rl.guard import guard
from otel_rl.journal.read import Run
from otel_rl.report.build import build_report
from otel_rl.report.sections.header import early_head
from otel_rl.report.source import Points, no_points, read_points
from otel_rl.report.terminal import laid_out, render

LIMIT_S: Final = 5.0
"""A command that has ended is not kept for longer, whatever takes long: the journal, a file server, the report."""


class Conclusion:
    """What there is to say, as far as it is known."""

    def __init__(self, *, quiet: bool) -> None:
        self.path: Path | None = None
        """Path of the run that is shown."""
        self.head = ""
        self.report = ""
        self.lines: list[str] = []
        self._quiet = quiet

    def look(self, find: Callable[[], list[Run]]) -> None:
        """Find out what there is to say.

        Args:
            find: gives the runs, the one that is shown first.
        """
        runs = find()
        if not runs:
            self.lines.append("nothing was recorded; `otel-rl doctor` says what can be")
        elif self._quiet:
            self.lines.append(f"recorded in {runs[0].path}")
        else:
            self.path = runs[0].path
        self.lines += [f"also recorded in {other.path}" for other in runs[1:]]
        for run in runs:
            self.lines += fallback_lines(run)
        if self.path is not None:
            self._show(runs[0], stderr())
        for run in runs:
            if answers := refusals(run):
                self.lines.append(
                    f"not all of it could be sent so far: {answers}; `otel-rl doctor {run.path}` says what waits"
                )

    def _show(self, run: Run, console: Console) -> None:
        self.head = _head(run, no_points(run), console)
        points = read_points(run)
        self.head = _head(run, points, console)
        report = build_report(run, time.time_ns(), points)
        with console.capture() as shown:
            console.print()
            render(report, console)
        self.report = shown.get()

    def say(self) -> None:
        """Print it on standard error."""
        shown, lines = self.report or self.head, list(self.lines)
        if shown:
            with suppress(OSError):  # the reader has gone
                sys.stderr.write(shown)
                sys.stderr.flush()
        for line in lines:
            complain(line)

    def say_rest(self, root: Path) -> None:
        """Print which command shows what could not be read in time."""
        if self.path is not None and not self.report:
            command = f"otel-rl report {shlex.quote(str(self.path))}"
            complain(f"the report takes longer than {LIMIT_S:.0f} s; to see all of it, run: {command}")
        elif self.path is None and not self.lines:
            command = f"OTEL_RL_DIR={shlex.quote(str(root))} otel-rl report"
            complain(f"{root} cannot be read in {LIMIT_S:.0f} s; to see what was recorded, run: {command}")


def _head(run: Run, points: Points, console: Console) -> str:
    with console.capture() as shown:
        console.print()
        console.print(laid_out(early_head(run, points), console.width), highlight=False)
        console.print()
    return shown.get()


def conclude(find: Callable[[], list[Run]], root: Path, *, quiet: bool) -> None:
    """Print the verdict and where the run lies, on standard error, in ``LIMIT_S`` at most.

    Args:
        find: gives the runs, the one that is shown first.
        root: where runs are kept.
        quiet: no verdict.
    """
    found = Conclusion(quiet=quiet)

    def look() -> None:
        with guard("show what was recorded"):
            found.look(find)

    thread = Thread(target=look, name="otel_rl-report", daemon=True)  # given up where it takes too long
    start_without_signals(thread)
    thread.join(LIMIT_S)
    is_late = thread.is_alive()  # asked before: it may end while we speak
    found.say()
    if is_late:
        found.say_rest(root)
