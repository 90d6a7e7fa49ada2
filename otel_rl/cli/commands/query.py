"""`otel-rl query`: questions of one's own about a run, in SQL."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime
from enum import Enum
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.cells import cell_len
from rich.table import Table as Grid
from rich.text import Text

from otel_rl.cli.console import (
    FAILED,
    RunName,
    complain,
    leave,
    opened,
    output_option,
    stdout,
    write_file,
    write_stdout,
)
from otel_rl.query.run_schema import TABLES
from otel_rl.runs.format import listed, printable
from otel_rl.runs.whole_file import part_of, replacing

if TYPE_CHECKING:
    from otel_rl.query.engine import RunTables

Row = tuple[Any, ...]
MOST_ROWS: Final = 100
"""The most rows of a table on the screen. The other formats have all rows."""
LEAST_WIDTH: Final = 32
"""A column has room for texts of this width: ids and times are in one piece."""
GAP: Final = 2
INTERRUPTED: Final = 130


class QueryFormat(str, Enum):
    """How the rows are written."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


def query(
    run: RunName = None,
    sql: Annotated[
        str | None,
        typer.Argument(
            metavar="SQL", help="One SELECT statement. Without it: the tables and their columns are listed."
        ),
    ] = None,
    form: Annotated[
        QueryFormat,
        typer.Option("--format", help="How to write the rows; parquet needs --output, where a table is csv."),
    ] = QueryFormat.TABLE,
    output: Annotated[
        Path | None,
        output_option("File to write; `-` is standard output. Without it: standard output."),
    ] = None,
    memory: Annotated[str, typer.Option("--memory", help="How much memory the engine may use.")] = "4GB",
) -> None:
    """Ask a run by SQL: steps, stages, waits, spans, points, curves, requests, logs.

    The numbers are the report's. SQL reaches neither files nor the network. It needs DuckDB: pip install
    'otel-rl[query]'. The project's docs/tables.md defines every column and has ten examples.
    """
    if sql is None and run is not None and " " in run.strip():
        run, sql = None, run  # the newest run
    if sql is None:
        _show_tables()
        return
    if form is QueryFormat.PARQUET and output is None:
        raise typer.BadParameter("--format parquet needs --output", param_hint="--format")
    found = opened(run)
    from otel_rl.query.engine import QueryError, RunTables

    try:
        written = [part_of(output)] if output and form is QueryFormat.PARQUET else []
        tables = RunTables(found, keeps=True, memory=memory, outputs=written)
        _write(tables, sql, form, output)
    except (QueryError, ModuleNotFoundError) as error:
        leave(str(error), FAILED)
    except KeyboardInterrupt:
        leave("interrupted", INTERRUPTED)


def _write(tables: RunTables, sql: str, form: QueryFormat, output: Path | None) -> None:
    if form is QueryFormat.PARQUET and output is not None:
        with replacing(output) as part:
            tables.write_parquet(sql, part)
        return
    names, rows = tables.rows(sql)
    if form is QueryFormat.TABLE and output is None:
        _show(names, rows)
        return
    lines = _json(names, rows) if form is QueryFormat.JSON else _csv(names, rows)
    if output is None:
        write_stdout(lines)
    else:
        write_file(output, lines)


def _show(names: Sequence[str], rows: Iterable[Row]) -> None:
    """Print the first rows as a table."""
    found, console = list(islice(rows, MOST_ROWS + 1)), stdout()
    columns = [[printable(name), *map(_shown, cells)] for name, *cells in zip(names, *found[:MOST_ROWS], strict=True)]
    widths = [max(map(cell_len, column)) for column in columns]
    if not console.is_terminal:
        console.width = max(console.width, sum(widths) + GAP * len(widths))
    grid = Grid(box=None, pad_edge=False, padding=(0, GAP, 0, 0), collapse_padding=True, header_style="bold")
    shown = _fitting(widths, console.width)
    if len(shown) < len(names) and len(found) == 1:
        grid.show_header = False
        for name, cell in columns:
            grid.add_row(Text(name, "bold"), Text(cell, overflow="fold"))
        console.print(grid)
        return
    for index in shown:
        is_number = all(isinstance(row[index], int | float | None) for row in found)
        least = min(widths[index], LEAST_WIDTH)
        grid.add_column(names[index], justify="right" if is_number else "left", overflow="fold", min_width=least)
    for cells in zip(*(columns[index][1:] for index in shown), strict=True):
        grid.add_row(*cells)
    console.print(grid)
    if not found:
        complain("no row fits the query")
    if left := names[len(shown) :]:
        complain(f"no room for {listed(left)}: name the columns that you want; --format csv has all")
    if len(found) > MOST_ROWS:
        complain(f"these are the first {MOST_ROWS} rows; --format csv has all")


def _fitting(widths: Sequence[int], room: int) -> range:
    """Return the first columns, for which there is room; long texts may take several lines."""
    ends = accumulate(min(width, LEAST_WIDTH) + GAP for width in widths)
    return range(max(1, sum(end - GAP <= room for end in ends)))


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else printable(str(value))


def _csv(names: Sequence[str], rows: Iterable[Row]) -> Iterator[str]:
    for row in chain([tuple(names)], rows):
        line = io.StringIO()
        cells = [json.dumps(_finite(one), default=_json_value) if isinstance(one, dict | list) else one for one in row]
        csv.writer(line, lineterminator="").writerow(cells)
        yield line.getvalue()


def _json(names: Sequence[str], rows: Iterable[Row]) -> Iterator[str]:
    """Yield the lines of a list of objects; JSON has no NaN and no infinity, which are null."""
    before = "["
    for row in rows:
        named = dict(zip(names, map(_finite, row), strict=True))
        yield before + json.dumps(named, ensure_ascii=False, default=_json_value)
        before = ","
    yield "[]" if before == "[" else "]"


def _finite(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _json_value(value: Any) -> str:
    return value.isoformat() if isinstance(value, date | datetime) else str(value)


def _show_tables() -> None:
    """Print the tables with their columns."""
    console = stdout()
    for table in TABLES.values():
        console.print(f"{table.name}: {table.sentence}", style="bold", soft_wrap=True)
        grid = Grid(box=None, show_header=False, pad_edge=False)
        for column in table.columns:
            grid.add_row(f"  {column.name}", column.type, column.unit, column.sentence)
        console.print(grid)
