"""`otel-rl report`: what a run shows."""

from __future__ import annotations

import time
from contextlib import suppress
from enum import Enum
from typing import Annotated, Final

import typer
from rich.live import Live
from rich.text import Text

from otel_rl.cli.console import RunName, opened, stderr, stdout
from otel_rl.journal.read import JournalNotFound, Run
from otel_rl.report.build import build_report
from otel_rl.report.data.report import Report
from otel_rl.report.schema import to_json
from otel_rl.report.terminal import document, render
from otel_rl.report.to_markdown import to_markdown
from otel_rl.runs.format import printable
from otel_rl.runs.locate import open_whole

PAUSE_S: Final = 2.0


class ReportFormat(str, Enum):
    """How a report is written for people."""

    TERMINAL = "terminal"
    MARKDOWN = "markdown"


def report(
    run: RunName = None,
    form: Annotated[
        ReportFormat, typer.Option("--format", help="How to print it; markdown is for issues and chats.")
    ] = ReportFormat.TERMINAL,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document for scripts.")] = False,
    live: Annotated[bool, typer.Option("--live", help="Show it anew every 2 s while the run goes on.")] = False,
) -> None:
    """Show where the time, the memory and the reward of a run went.

    Works on a run that is going on, that hangs, that was killed, and on one that is done. Shows one sentence on what
    holds the run back, the share of every stage, each rank's own time (without waiting for the others), reward and
    stability, throughput, memory peaks, stages that are still open, and what was lost. The project's docs/report.md
    defines every number, docs/report.schema.json the JSON.
    """
    if json + live + (form is ReportFormat.MARKDOWN) > 1:
        raise typer.BadParameter("--json, --live and --format markdown exclude each other")
    if live:
        _follow(run)
    elif json:
        typer.echo(to_json(_build(opened(run))))
    elif form is ReportFormat.MARKDOWN:
        typer.echo(to_markdown(_build(opened(run))), nl=False)
    else:
        render(_build(opened(run)), stdout())


def _build(found: Run) -> Report:
    console = stderr()
    if not console.is_terminal:
        return build_report(found, time.time_ns())
    with console.status(Text(f"reading {printable(found.path.name)}")):
        return build_report(found, time.time_ns())


def _follow(run: str | None) -> None:
    console = stdout()
    found = opened(run)
    shown = _build(found)
    with suppress(KeyboardInterrupt, JournalNotFound), Live(console=console, screen=True, auto_refresh=False) as view:
        while shown.state == "alive":
            view.update(document(shown, console.width), refresh=True)
            time.sleep(PAUSE_S)
            shown = build_report(open_whole(found.path), time.time_ns())
    if shown.state == "alive":  # interrupted, or it is gone: said now, as with the screen of before it would be lost
        shown = _build(opened(str(found.path)))
    render(shown, console)
