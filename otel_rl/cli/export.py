"""`otel-rl export`: a run for other tools."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from otel_rl.cli import streams
from otel_rl.cli.outcome import FAILED, RunName, leave, opened, stderr
from otel_rl.journal.read import Run
from otel_rl.report.otlp_json import lines


class Format(str, Enum):
    """What `--to` takes."""

    OTLP_JSON = "otlp-json"


def export(
    run: RunName = None,
    to: Annotated[
        Format, typer.Option("--to", help="`otlp-json`: a request a line, as the Collector's file exporter writes.")
    ] = Format.OTLP_JSON,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; standard output without it.")
    ] = None,
) -> None:
    """Write the spans, metrics and logs of a run exactly as they were recorded.

    Each line is one object {"resourceSpans": ...}, {"resourceMetrics": ...} or {"resourceLogs": ...}. Jaeger opens such
    a file by upload, the Collector's otlpjsonfile receiver reads it.
    """
    found = opened(run)
    if output is None:
        _to_stdout(line for line, _ in lines(found))
        return
    try:
        with output.open("w", encoding="utf-8") as file:
            for line in _with_progress(found):
                file.write(f"{line}\n")
    except OSError as error:
        leave(f"cannot write {output}: {error.strerror}", FAILED)


def _to_stdout(texts: Iterable[str]) -> None:
    """Print lines; a reader that goes away (`| head`) ends the command without a word."""
    try:
        for text in texts:
            sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        streams.drop(sys.stdout.fileno())


def _with_progress(run: Run) -> Iterator[str]:
    """Show how far the journal is read, where somebody looks."""
    total = sum(segment.size for journal in run.journals for segment in journal.segments)
    columns = (TextColumn("exporting"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = stderr()
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("export", total=total)
        for line, size in lines(run):
            yield line
            progress.advance(task, size)
