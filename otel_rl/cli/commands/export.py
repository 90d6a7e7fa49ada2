"""`otel-rl export`: a run for other tools."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from otel_rl.cli.console import STDOUT, RunName, complain, opened, stderr, write_file, write_stdout
from otel_rl.cli.orphans import Orphans
from otel_rl.config.parsers import expanded_path
from otel_rl.journal.read import Run
from otel_rl.report.rows.losses import damage_rows
from otel_rl.runs.format import plural, size
from otel_rl.runs.otlp_json import lines


class Format(str, Enum):
    """What `--to` takes."""

    OTLP_JSON = "otlp-json"


def export(
    run: RunName = None,
    to: Annotated[
        Format,
        typer.Option("--to", help="`otlp-json`: one OTLP request a line, as the Collector's file exporter writes."),
    ] = Format.OTLP_JSON,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            parser=expanded_path,
            metavar="PATH",
            help="File to write; `-` is standard output. Without it: standard output.",
        ),
    ] = None,
    close_open: Annotated[
        bool,
        typer.Option(
            "--close-open",
            help="Of a run that was killed: add the stages in which it died as spans that end where its journal ends, "
            "marked `rl.truncated`, so that no span lacks its parent.",
        ),
    ] = False,
) -> None:
    """Write the spans, metrics and logs of a run for other tools, exactly as they were recorded.

    Each line is one object {"resourceSpans": ...}, {"resourceMetrics": ...} or {"resourceLogs": ...}. Jaeger opens such
    a file by upload, the Collector's otlpjsonfile receiver reads it. Spans whose parent is not among them are counted
    on standard error at the end.
    """
    found = opened(run)
    orphans = Orphans(found)
    requests = chain(lines(found), orphans.lines() if close_open else ())
    if output is not None and output != STDOUT:
        write_file(output, _with_progress(found, requests))
    elif not write_stdout(line for line, _ in requests):
        return
    for row in damage_rows(found.journals):
        complain(f"left out of {row.writer}: {plural(row.places, 'place')}, {size(row.bytes)}: {row.reason}")
    for remark in orphans.remarks(close_open):
        complain(remark)


def _with_progress(run: Run, requests: Iterable[tuple[str, int]]) -> Iterator[str]:
    total = sum(segment.size for journal in run.journals for segment in journal.segments)
    columns = (TextColumn("exporting"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = stderr()
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("export", total=total)
        for line, size in requests:
            yield line
            progress.advance(task, size)
