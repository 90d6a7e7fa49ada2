"""What a command that recorded prints at its end: the report, or only its head if all of it takes too long."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Final

from rich.console import Console

from otel_rl.cli.console import complain, fallback_lines, stderr
from otel_rl.cli.sending import start_without_signals
from otel_rl.cli.shipping import refusals
from otel_rl.config import LAUNCH, Config
from otel_rl.guard import guard
from otel_rl.journal.read import Run
from otel_rl.process.identity import TRAINER, has_variable
from otel_rl.report import cache
from otel_rl.report.build import build_report
from otel_rl.report.reading import Points
from otel_rl.report.sections.header import early_head
from otel_rl.report.terminal import laid_out, render

LIMIT_S: Final = 5.0
"""A command that has ended is not kept for longer, whatever takes long: the journal, a file server, the report."""
MOST_PIDS: Final = 4


class Conclusion:
    """What there is to print, as far as it is known."""

    def __init__(self, *, quiet: bool) -> None:
        self.path: Path | None = None
        """Path of the run that is shown."""
        self.shown = ""
        """The run's report, or its head."""
        self.is_whole = False
        self.lines: list[str] = []
        self._quiet = quiet

    def read(self, find: Callable[[], list[Run]], launch: str = "") -> None:
        """Read the runs of the command, of which the first is shown; ``launch`` is its mark."""
        runs = find()
        if not runs and (left := _outliving(launch)):
            self.lines.append(
                f"nothing was recorded so far; the command has ended, but what it started goes on in the background "
                f"({_pids(left)}): `otel-rl report` shows what that records"
            )
        elif not runs:
            config = Config.from_env()
            off = "OTEL_SDK_DISABLED is true" if config.enabled else "OTEL_RL_ENABLED is false"
            why = "; `otel-rl doctor` says what can be" if config.active else f": {off}"
            self.lines.append(f"nothing was recorded{why}")
        elif self._quiet:
            self.lines.append(f"recorded in {runs[0].path}")
        else:
            self.path = runs[0].path
        self.lines += [f"also recorded in {other.path}" for other in runs[1:]]
        for run in runs:
            self.lines += fallback_lines(run)
            if pids := _training(run, launch):
                follow = f"otel-rl report --live {shlex.quote(str(run.path))}"
                self.lines.append(
                    f"the command has ended, but its training goes on in the background ({_pids(pids)}); "
                    f"to follow it: {follow}"
                )
        if self.path is not None:
            self._show(runs[0], stderr())
        for run in runs:
            if answers := refusals(run):
                hint = f"`otel-rl doctor {run.path}` says what waits"
                self.lines.append(f"not all of it could be sent so far: {answers}; {hint}")

    def _show(self, run: Run, console: Console) -> None:
        reading = cache.load(run)
        self.shown = _head(run, reading.points, console)
        reading.read_numbers()
        self.shown = _head(run, reading.points, console)
        reading.read_spans()
        cache.save(run, reading)
        report = build_report(run, time.time_ns(), reading)
        with console.capture() as shown:
            console.print()
            render(report, console, ())
        self.shown, self.is_whole = shown.get(), True

    def print(self) -> None:
        """Print it on standard error."""
        lines = list(self.lines)
        with suppress(OSError):  # the reader has gone
            sys.stderr.write(self.shown)
            sys.stderr.flush()
        for line in lines:
            complain(line)

    def print_rest(self, root: Path) -> None:
        """Print which command shows what could not be read in time."""
        if self.path is not None and not self.is_whole:
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


def _training(run: Run, launch: str) -> list[int]:
    """List the trainers of a command that go on here; workers of Ray end a little after its job."""
    return [
        journal.identity.local_pid
        for journal in run.journals
        if launch
        and f"{journal.identity.launch}/".startswith(f"{launch}/")
        and journal.identity.writer.startswith(f"{TRAINER}-")
        and journal.identity.local_pid
        and journal.alive()
    ]


def _outliving(launch: str) -> list[int]:
    """List the processes of a command that go on; a sidecar records nothing."""
    mark, is_off = (f"{LAUNCH}={launch}".encode(),), (b"OTEL_RL_ENABLED=false",)
    pids = [int(process.name) for process in Path("/proc").glob("[0-9]*")] if launch else []
    return [pid for pid in pids if has_variable(pid, mark) and not has_variable(pid, is_off)]


def _pids(pids: Sequence[int]) -> str:
    more = f" and {len(pids) - MOST_PIDS} more" if len(pids) > MOST_PIDS else ""
    return f"pid {', '.join(map(str, pids[:MOST_PIDS]))}{more}"


def conclude(find: Callable[[], list[Run]], root: Path, launch: str = "", *, quiet: bool) -> None:
    """Print the report, unless quiet, and where the runs lie, on standard error, in ``LIMIT_S`` at most."""
    found = Conclusion(quiet=quiet)

    def read() -> None:
        with guard("show what was recorded"):
            found.read(find, launch)

    thread = Thread(target=read, name="otel_rl-report", daemon=True)  # given up if it takes too long
    start_without_signals(thread)
    thread.join(LIMIT_S)
    is_late = thread.is_alive()  # asked before: it may end while we print
    found.print()
    if is_late:
        found.print_rest(root)
