"""`otel-rl export`: a run for other tools."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from otel_rl.cli.console import (
    FAILED,
    RunName,
    complain,
    leave,
    opened,
    output_option,
    stderr,
    write_file,
    write_stdout,
)
from otel_rl.cli.orphans import Orphans
from otel_rl.exports.log_lines import log_lines
from otel_rl.exports.perfetto_trace import perfetto_trace
from otel_rl.exports.tensorboard_events import OtherEvents, write_events
from otel_rl.journal.read import Run
from otel_rl.query.run_schema import TABLES
from otel_rl.report.rows.losses import damage_rows
from otel_rl.runs.format import plural, size
from otel_rl.runs.otlp_json import lines
from otel_rl.runs.whole_file import part_of, replacing


class Format(str, Enum):
    """What `--to` takes."""

    OTLP_JSON = "otlp-json"
    JSONL = "jsonl"
    PARQUET = "parquet"
    PERFETTO = "perfetto"
    TENSORBOARD = "tensorboard"


LINES: Final = (Format.OTLP_JSON, Format.JSONL)
"""These are text, which standard output can have."""


def export(
    run: RunName = None,
    to: Annotated[
        Format,
        typer.Option(
            "--to",
            help="`otlp-json`: one OTLP request a line, as the Collector's file exporter writes. `jsonl`: the log "
            "records of steps and samples, one a line. `parquet`: the tables of a query, a file each. `perfetto`: a "
            "trace for ui.perfetto.dev. `tensorboard`: scalars and histograms.",
        ),
    ] = Format.OTLP_JSON,
    output: Annotated[
        Path | None,
        output_option(
            "What to write: a file, or a directory for `parquet` and `tensorboard`; `-` is standard output. Without "
            "it: lines go to standard output."
        ),
    ] = None,
    close_open: Annotated[
        bool,
        typer.Option(
            "--close-open",
            help="With `otlp-json`, of a run that was killed: add the stages in which it died as spans that end where "
            "its journal ends, marked `rl.truncated`, so that no span lacks its parent.",
        ),
    ] = False,
) -> None:
    """Write a run for other tools.

    `otlp-json` is spans, metrics and logs exactly as they were recorded: each line is one object {"resourceSpans":
    ...}, {"resourceMetrics": ...} or {"resourceLogs": ...}. Jaeger opens such a file by upload, the Collector's
    otlpjsonfile receiver reads it. Spans whose parent is not among them are counted on standard error at the end.

    `perfetto`, `tensorboard` and `parquet` need packages: pip install 'otel-rl[export]'. The project's docs/exports.md
    says what each format has.
    """
    if close_open and to is not Format.OTLP_JSON:
        raise typer.BadParameter(f"--to {to.value} has no use for it", param_hint="--close-open")
    if output is None and to not in LINES:
        raise typer.BadParameter(f"--to {to.value} needs --output", param_hint="--to")
    found = opened(run)
    if output is None or to in LINES:
        remarks = _export_lines(found, to, output, close_open)
    else:
        remarks = []
        _export_files(found, to, output)
    for row in damage_rows(found.journals):
        complain(f"left out of {row.writer}: {plural(row.places, 'place')}, {size(row.bytes)}: {row.reason}")
    for remark in remarks:
        complain(remark)


def _export_lines(run: Run, to: Format, output: Path | None, close_open: bool) -> list[str]:
    """Write a format of lines; return what is to be said of spans without a parent."""
    orphans = Orphans(run)
    if to is Format.JSONL:
        texts = log_lines(run)
    else:
        requests = chain(lines(run), orphans.lines() if close_open else ())
        texts = _with_progress(run, requests) if output else (line for line, _ in requests)
    if output is not None:
        write_file(output, texts)
    elif not write_stdout(texts):
        raise typer.Exit
    return orphans.remarks(close_open) if to is Format.OTLP_JSON else []


def _export_files(run: Run, to: Format, output: Path) -> None:
    from otel_rl.query.engine import QueryError

    try:
        if to is Format.PERFETTO:
            _write_trace(run, output)
        else:
            if output.is_file():
                leave(f"{output} is a file, and --to {to.value} writes a directory; give another --output", FAILED)
            output.mkdir(parents=True, exist_ok=True)
            (_write_tables if to is Format.PARQUET else write_events)(run, output)
    except (QueryError, ModuleNotFoundError, OtherEvents) as error:
        leave(str(error), FAILED)
    except OSError as error:
        leave(f"cannot write {output}: {error.strerror or error}", FAILED)


def _write_trace(run: Run, output: Path) -> None:
    parts = perfetto_trace(run)
    with replacing(output) as part, part.open("wb") as file:
        file.writelines(parts)


def _write_tables(run: Run, directory: Path) -> None:
    """Write each table of a query into a file."""
    from otel_rl.query.engine import RunTables

    paths = {name: directory / f"{name}.parquet" for name in TABLES}
    tables = RunTables(run, keeps=True, outputs=[part_of(path) for path in paths.values()])
    with ExitStack() as all_at_once:
        for name, path in paths.items():
            tables.write_parquet(f"SELECT * FROM {name}", all_at_once.enter_context(replacing(path)))


def _with_progress(run: Run, requests: Iterable[tuple[str, int]]) -> Iterator[str]:
    total = sum(segment.size for journal in run.journals for segment in journal.segments)
    columns = (TextColumn("exporting"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = stderr()
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("export", total=total)
        for line, size in requests:
            yield line
            progress.advance(task, size)
