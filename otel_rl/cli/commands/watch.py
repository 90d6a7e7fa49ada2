"""`otel-rl watch`: wait until a run has a finding, or ends."""

from __future__ import annotations

import time
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Annotated, Final

import typer

from otel_rl.cli.console import NOT_FOUND, RunName, complain, leave, write_stdout
from otel_rl.config import root
from otel_rl.journal.read import JournalNotFound
from otel_rl.process.mailbox import Inbox
from otel_rl.process.on_finding import LiveFinding, active, told
from otel_rl.report.build import build_report
from otel_rl.report.data.finding import Finding
from otel_rl.runs.format import plural, printable
from otel_rl.runs.locate import find_run, open_whole

LOOK_S: Final = 2.0
QUIET_S: Final = 10.0
"""A run whose processes are gone for so long has ended; a restart begins sooner."""
UNWATCHED_S: Final = 60.0
CODES: Final = {"alarm": 5, "warning": 4}
INTERRUPTED: Final = 130


class Until(str, Enum):
    """What is waited for."""

    ALARM = "alarm"
    WARNING = "warning"

    def takes(self, severity: str) -> bool:
        """Return whether a finding of this severity is one."""
        return severity in ((self.value,) if self is Until.ALARM else CODES)


def watch(
    run: RunName = None,
    until: Annotated[
        Until, typer.Option("--until", help="End with the first finding that is so severe, or worse.")
    ] = Until.ALARM,
    start_s: Annotated[
        float, typer.Option("--start", min=0.0, metavar="SECONDS", help="How long the run may take to begin.")
    ] = 60.0,
) -> None:
    """Wait until a run has an alarm, or has ended; print what is found meanwhile. For scripts.

    A line for each finding and stall that begins, and one when it is over, goes to standard output, as the sidecar
    tells it. When the processes of the run are gone for 10 s, the whole run is judged as its report does.
    """
    try:
        raise typer.Exit(_watch(_begun(run, start_s), until))
    except JournalNotFound as error:  # it was removed meanwhile
        leave(str(error), NOT_FOUND)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _begun(name: str | None, start_s: float) -> Path:
    """Wait for a run to begin, and return its directory."""
    deadline = time.monotonic() + start_s
    while True:
        try:
            path = find_run(name, root().absolute())
            return open_whole(path).path
        except JournalNotFound as error:
            if time.monotonic() >= deadline:
                leave(str(error), NOT_FOUND)
        time.sleep(min(LOOK_S, max(0.0, deadline - time.monotonic())))


def _watch(path: Path, until: Until) -> int:
    inbox, known = Inbox(), dict[str, LiveFinding]()
    began = seen = time.monotonic()
    has_complained = False
    while True:
        run = open_whole(path)
        is_alive = run.alive()
        new = told(path, inbox)  # after the look at its processes: the last words of a run that has ended are there
        write_stdout(_line(one.kind, one.severity, one.sentence, one.advice) for one in new)
        known = active([*known.values(), *new])
        if is_alive:
            seen = time.monotonic()
            if code := _code((one.severity for one in known.values()), until):
                return code
        elif time.monotonic() - seen >= QUIET_S or seen == began:
            return _judge_end(path, until, {one.rule for one in known.values()})
        is_watched = any(journal.identity.is_sidecar and journal.alive() for journal in run.journals)
        if not (is_watched or has_complained) and is_alive and time.monotonic() - began > UNWATCHED_S:
            has_complained = True
            complain("no sidecar judges this run while it goes on; it is judged when it has ended")
        time.sleep(LOOK_S)


def _judge_end(path: Path, until: Until, known: Iterable[str]) -> int:
    """Judge a run that has ended; print what was not told, and that it has ended."""
    findings = build_report(open_whole(path), time.time_ns()).findings
    found: list[Finding] = [one for one in (*findings.health, *findings.learn, *findings.time) if one.severity in CODES]
    write_stdout(_line(one.kind, one.severity, one.sentence, one.advice) for one in found if one.rule not in known)
    counts = [plural(sum(one.severity == severity for one in found), severity) for severity in CODES]
    complain(f"the run {path.name} has ended with {' and '.join(counts)}")
    return _code((one.severity for one in found), until)


def _code(severities: Iterable[str], until: Until) -> int:
    return max((CODES[one] for one in severities if until.takes(one)), default=0)


def _line(kind: str, severity: str, sentence: str, advice: str) -> str:
    return printable(" ".join(filter(None, (f"{kind} {severity}:", sentence, advice))))
