"""`otel-rl report`: what a run shows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from enum import Enum
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.live import Live
from rich.text import Text

from otel_rl.cli.console import FAILED, NOT_FOUND, RunName, leave, opened, stderr, stdout
from otel_rl.config import traces_url
from otel_rl.journal.read import JournalNotFound, Run
from otel_rl.report import cache
from otel_rl.report.build import build_report, build_with_course
from otel_rl.report.data.report import Report
from otel_rl.report.reading import Progress, RunReading
from otel_rl.report.schema import to_json
from otel_rl.report.screen import PARTS, Part
from otel_rl.report.terminal import document, render
from otel_rl.report.to_markdown import to_markdown
from otel_rl.runs.format import printable, size
from otel_rl.runs.locate import open_whole
from otel_rl.runs.whole_file import replacing

PAUSE_S: Final = 2.0


class ReportFormat(str, Enum):
    """How a report is written for people."""

    TERMINAL = "terminal"
    MARKDOWN = "markdown"


def report(  # noqa: PLR0913, PLR0917  an option for each part
    run: RunName = None,
    form: Annotated[
        ReportFormat, typer.Option("--format", help="How to print it; markdown is for issues and chats.")
    ] = ReportFormat.TERMINAL,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document for scripts.")] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            metavar="FILE",
            help="Write a page of pictures and tables for a browser. Without it: no page is written.",
        ),
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Show it anew every 2 s while the run goes on.")] = False,
    ranks: Annotated[bool, typer.Option("--ranks", help="Add own times, waits and collectives of each rank.")] = False,
    requests: Annotated[
        bool, typer.Option("--requests", help="Add times and lengths of the rollout requests.")
    ] = False,
    compute: Annotated[bool, typer.Option("--compute", help="Add FLOP/s, samples and tokens of each rank.")] = False,
    memory: Annotated[bool, typer.Option("--memory", help="Add the memory peaks of each rank.")] = False,
    goodput: Annotated[bool, typer.Option("--goodput", help="Add what the wall time was spent on.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Add everything, with the exact names.")] = False,
) -> None:
    """Show on one screen where the time of a run goes, whether the model learns, and whether the run is healthy.

    Works on a run that is going on, that hangs, that was killed, and on one that is done. It begins with three
    findings, TIME, LEARN and HEALTH. Learning curves, the stages of a step and throughput follow. The options below
    --live add more. The project's docs/report.md defines every number, docs/report.schema.json the JSON.
    """
    flags = ranks, requests, compute, memory, goodput, everything
    parts = [part for part, is_asked in zip(PARTS, flags, strict=True) if is_asked]
    if json + live + (form is ReportFormat.MARKDOWN) + (html is not None) > 1:
        raise typer.BadParameter("--json, --html, --live and --format markdown exclude each other")
    if live:
        shown = _follow(run, parts)
    elif html is not None:
        shown = _write_page(opened(run), html)
    else:
        shown = _build(opened(run))
        if json:
            typer.echo(to_json(shown))
        elif form is ReportFormat.MARKDOWN:
            typer.echo(to_markdown(shown, parts), nl=False)
        else:
            render(shown, stdout(), parts)
    if shown.is_empty:
        raise typer.Exit(NOT_FOUND)


def _build(found: Run) -> Report:
    return build_report(found, time.time_ns(), _read(found))


def _write_page(found: Run, path: Path) -> Report:
    check_drawable()
    from otel_rl.report.page.document import to_html

    shown, course = build_with_course(found, time.time_ns(), _read(found))
    save_page(path, to_html(shown, course, traces_url()))
    return shown


def check_drawable() -> None:
    """End the command if no page can be drawn."""
    from otel_rl.report.page.document import is_drawable

    if not is_drawable():
        leave("--html needs Bokeh: pip install 'otel-rl[view]'", FAILED)


def save_page(path: Path, page: str) -> None:
    """Write a page into a file, and say so; or end the command with why it cannot be written."""
    try:
        with replacing(path) as part:
            part.write_text(page, "utf-8")
    except OSError as error:
        leave(f"cannot write {path}: {error.strerror}", FAILED)
    stderr().print(f"{printable(str(path))} ({size(len(page))}) opens in a browser, without a network", soft_wrap=True)


def _read(found: Run) -> RunReading:
    """Read a run, and show on a terminal how far that is."""
    reading, console = cache.load(found), stderr()
    shown = _Reading(printable(found.path.name))
    with console.status(shown) if console.is_terminal else nullcontext():
        reading.read(shown.progress)
    cache.save(found, reading)
    return reading


class _Follower:
    """Makes the report of a run again and again, and reads only what came since."""

    def __init__(self, run: Run) -> None:
        self._path = run.path
        self._known = b""

    def report(self) -> Report:
        """Make it anew."""
        run = open_whole(self._path)
        reading = cache.restore(self._known, run) if self._known else cache.load(run)
        reading.read()
        self._known = cache.dump(reading)
        return build_report(run, time.time_ns(), reading)


class _Reading:
    """The line of a report that is being made: which run is read, and how far."""

    def __init__(self, name: str) -> None:
        self.progress = Progress()
        self._name = name

    def __rich__(self) -> Text:
        return Text(f"reading {self._name} {self.progress.share:.0%}")


def _follow(run: str | None, parts: Sequence[Part]) -> Report:
    console = stdout()
    found = opened(run)
    shown, follower = _build(found), _Follower(found)
    with suppress(KeyboardInterrupt, JournalNotFound), Live(console=console, screen=True, auto_refresh=False) as view:
        while shown.state == "alive":
            view.update(document(shown, console.width, parts), refresh=True)
            time.sleep(PAUSE_S)
            shown = follower.report()
    if shown.state == "alive":  # interrupted, or it is gone: said now, as with the screen of before it would be lost
        shown = _build(opened(str(found.path)))
    render(shown, console, parts)
    return shown
