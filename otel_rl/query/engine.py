"""DuckDB over the tables of a run: one statement that only reads, files and network closed to it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from otel_rl import vocabulary as v
from otel_rl.config import root
from otel_rl.journal.read import Run
from otel_rl.query.columns_as_arrays import KEYS, KNOWN, VALUES, Arrays, unmasked
from otel_rl.query.run_schema import LOGS, POINTS, REQUEST_COLUMNS, REQUESTS, SPANS, TABLES, SqlColumn, SqlTable
from otel_rl.report import cache
from otel_rl.report.source import Source
from otel_rl.runs.locate import find_run, open_whole

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

    from otel_rl.query.span_tables import SpanPart

T = TypeVar("T")
MEMORY: Final = "4GB"
PAUSE_S: Final = 0.05
FETCHED: Final = 10_000
"""Rows at once."""
MISSING: Final = "queries need DuckDB, which is not installed: pip install 'otel-rl[query]'"
TEXTS: Final = "Attributes and labels are texts: CAST(attributes['rl.tokens'] AS BIGINT)"
HEX: Final = "lpad(lower(hex({})), 16, '0')"
NO_MAP: Final = "MAP([]::VARCHAR[], []::VARCHAR[])"
MADE: Final = {
    "trace_id": f"{HEX.format('high')} || {HEX.format('low')}",
    "span_id": HEX.format("id"),
    "parent_id": f"CASE WHEN parent = 0 THEN '' ELSE {HEX.format('parent')} END",
    "duration_s": "(end_time - begin_time) / 1e9",
}
"""What columns of ``spans`` without an array are made from."""


class QueryError(ValueError):
    """A question that cannot be answered; the message says why."""


def read(run: str | os.PathLike[str] | None = None) -> RunTables:
    """Open the tables of a run for questions of one's own; nothing is written to the run.

    Args:
        run: the name of a run below ``OTEL_RL_DIR``, or the path of its directory; None for the newest one.

    Raises:
        JournalNotFound: there is no such run.
        ModuleNotFoundError: DuckDB is not installed.
    """
    name = None if run is None else os.fspath(run)
    return RunTables(open_whole(find_run(name, root().absolute())))


class RunTables:
    """The tables of a run, each made when it is asked for; ``run.steps`` is one as a relation of DuckDB.

    It is of one thread.
    """

    def __init__(self, run: Run, *, keeps: bool = False, memory: str = MEMORY, outputs: Sequence[Path] = ()) -> None:
        """Make no table yet.

        Args:
            run: whose tables.
            keeps: whether what is read for them may be kept beside the run, for the next report or query.
            memory: how much the engine may use.
            outputs: the only files that may be written.
        """
        self.path = run.path
        self._run, self._keeps, self._memory = run, keeps, memory
        self._engine = _connect(memory, outputs)
        self._made: set[str] = set()

    def __repr__(self) -> str:
        return f"RunTables({str(self.path)!r})"

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *TABLES]

    def __getattr__(self, name: str) -> DuckDBPyRelation:
        if name not in TABLES:
            raise AttributeError(f"a run has no table {name!r}; it has {', '.join(TABLES)}")
        self._make(name)
        return self._engine.table(name) if name not in self._made else self._engine.view(name)

    def query(self, sql: str) -> DuckDBPyRelation:
        """Return what a statement selects, as a relation of DuckDB, which runs it when its rows are asked for.

        Raises:
            QueryError: the statement is wrong, or does not only read.
        """
        return self._ask(lambda: self._engine.sql(self._checked(sql)))

    def execute(self, sql: str) -> DuckDBPyConnection:
        """Run a statement; its rows are fetched from what is returned.

        Raises:
            QueryError: as in ``query``; or it needs more memory than it may use.
        """
        self._ask(lambda: self._checked(sql))
        return self._ask(lambda: self._run_through(lambda: self._engine.execute(sql)))

    def rows(self, sql: str) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
        """Run a statement; return the names of its columns, and its rows as they come.

        Raises:
            QueryError: as in ``execute``; also while rows are taken.
        """
        found = self.execute(sql)
        return [column[0] for column in found.description or ()], self._fetched(found)

    def _fetched(self, found: DuckDBPyConnection) -> Iterator[tuple[Any, ...]]:
        while some := self._ask(lambda: self._run_through(lambda: found.fetchmany(FETCHED))):
            yield from some

    def write_parquet(self, sql: str, path: Path) -> None:
        """Write the rows of a statement into a file that may be written.

        Raises:
            QueryError: as in ``execute``.
        """
        relation = self.query(sql)
        self._ask(lambda: self._run_through(lambda: relation.write_parquet(str(path.absolute()))))

    def _checked(self, sql: str) -> str:
        """Make the tables that a statement names, if it is right: before anything is read."""
        if not sql.isascii() and sql != sql.encode(errors="replace").decode():
            raise QueryError("a query is text in UTF-8, and this is none")
        statements = self._engine.extract_statements(sql)
        if len(statements) != 1:
            raise QueryError(f"a query is one statement; these are {len(statements)}")
        kind = statements[0].type.name
        if kind != "SELECT":
            raise QueryError(f"a query only reads: it begins with SELECT, FROM or WITH, and this is {kind}")
        self._engine.sql(sql)  # finds what is wrong, and runs nothing
        named = {name.strip('"').rpartition(".")[2].lower() for name in self._engine.get_table_names(sql)}
        if re.search(r"\bquery", sql, re.IGNORECASE):  # functions that take names as texts
            named = set(TABLES)
        for name in TABLES:
            if name in named:
                self._make(name)
        return sql

    def _ask(self, question: Callable[[], T]) -> T:
        import duckdb

        try:
            return question()
        except duckdb.OutOfMemoryException as error:
            raise QueryError(f"this needs more memory than the {self._memory} that it may use") from error
        except duckdb.Error as error:
            raise QueryError(_sentence(str(error))) from error

    def _run_through(self, task: Callable[[], T]) -> T:
        """Run something in a thread, so that a signal ends it: inside of a long task the engine sees no signal."""
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(task)
            try:
                return running.result()
            except (KeyboardInterrupt, SystemExit):
                while not running.done():  # it may not have begun
                    self._engine.interrupt()
                    wait([running], PAUSE_S)
                raise

    @cached_property
    def _steps(self) -> dict[str, Callable[[], Arrays]]:
        from otel_rl.query.step_tables import StepTables

        reading = cache.load(self._run)
        reading.read()
        if self._keeps:
            cache.save(self._run, reading)
        return StepTables(Source(self._run, time.time_ns(), reading)).makers()

    @cached_property
    def _parts(self) -> list[SpanPart]:
        from otel_rl.query.span_tables import span_parts

        return span_parts(self._run)

    def _make(self, name: str) -> None:
        """Make a table, unless it is there."""
        if name in self._made:
            return
        table = TABLES[name]
        if table in (SPANS, REQUESTS):
            select = self._select_spans(table)
        else:
            from otel_rl.query.record_tables import logs, points

            makers = {POINTS.name: points, LOGS.name: logs}
            columns = makers[name](self._run) if name in makers else self._steps[name]()
            select = self._select(table, f"{name}_arrays", columns)
        if select:
            self._engine.execute(f"DROP TABLE {name}")
            self._engine.execute(f"CREATE VIEW {name} AS {select}")
            self._made.add(name)

    def _select(self, table: SqlTable, name: str, columns: Arrays, keys: Sequence[str] | None = None) -> str:
        """Return the statement that shows arrays as a table."""
        arrays = unmasked(columns)
        self._engine.register(name, arrays)
        return f"SELECT {', '.join(_column(one, arrays, keys) for one in table.columns)} FROM {name}"

    def _select_spans(self, table: SqlTable) -> str:
        selects = [
            self._select(SPANS, f"span_arrays_{number}", part.columns, part.keys)
            for number, part in enumerate(self._parts)
            if table is SPANS or part.keys is None or v.SUBMISSION in part.keys
        ]
        spans = " UNION ALL ".join(selects)
        return _requests(spans) if spans and table is REQUESTS else spans


def _connect(memory: str, outputs: Sequence[Path]) -> DuckDBPyConnection:
    """Return an engine with empty tables, from which no SQL reaches a file or the network."""
    try:
        import duckdb
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(MISSING, name="duckdb") from error
    settings: dict[str, str | bool | int | float | list[str]] = {
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "memory_limit": memory,
        "temp_directory": "",
    }
    try:
        engine = duckdb.connect(config=settings)
    except duckdb.Error as error:
        raise QueryError(f"memory {memory!r}: {_sentence(str(error))}") from error
    if outputs:
        engine.execute(f"SET allowed_paths = [{', '.join(_quoted(str(path)) for path in outputs)}]")
    for setting in ("python_enable_replacements = false", "enable_external_access = false"):
        engine.execute(f"SET {setting}")
    for table in TABLES.values():
        engine.execute(f"CREATE TABLE {table.name} ({', '.join(f'{one.name} {one.type}' for one in table.columns)})")
    engine.execute("SET lock_configuration = true")
    return engine


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _column(column: SqlColumn, arrays: Arrays, keys: Sequence[str] | None) -> str:
    """Return what a column is made from; ``keys`` are the attributes that have an array each."""
    name, type = column.name, column.type
    if type.startswith("MAP") and keys is None:
        return f"MAP(CAST({name}{KEYS} AS VARCHAR[]), CAST({name}{VALUES} AS VARCHAR[])) AS {name}"
    if type.startswith("MAP"):
        return f"{_map(keys or ())} AS {name}"
    source = name if name in arrays else MADE[name]
    value = f"make_timestamp_ns({source})" if type == "TIMESTAMP_NS" else f"CAST({source} AS {type})"
    return f"CASE WHEN {name}{KNOWN} THEN {value} END AS {name}" if f"{name}{KNOWN}" in arrays else f"{value} AS {name}"


def _map(keys: Sequence[str]) -> str:
    """Return the map of arrays; by way of a struct, whose names have no case, it is made six times as fast."""
    entries = "{" + ", ".join(f"{_quoted(key)}: CAST(a{place} AS VARCHAR)" for place, key in enumerate(keys)) + "}"
    if not keys:
        return NO_MAP
    is_struct = all(keys) and len({key.casefold() for key in keys}) == len(keys)
    return f"CAST({entries} AS MAP(VARCHAR, VARCHAR))" if is_struct else f"MAP {entries}"


def _requests(spans: str) -> str:
    """Return the statement that shows some spans as requests."""
    columns = []
    for one in REQUESTS.columns:
        key = REQUEST_COLUMNS.get(one.name)
        value = f"TRY_CAST(attributes[{_quoted(key)}] AS {one.type})" if key else one.name
        value = f"coalesce({value}, '')" if key and one.type == "VARCHAR" else value
        columns.append(f"{value} AS {one.name}")
    return f"SELECT {', '.join(columns)} FROM ({spans}) WHERE map_contains(attributes, {_quoted(v.SUBMISSION)})"


def _sentence(message: str) -> str:
    """Return what the engine says of a statement, in one line and without the statement."""
    text = re.sub(r"^[\w ]+ Error: ", "", message.partition("\n\nLINE ")[0])
    if "Table with name" in text:
        text = f"{text.partition('Did you mean')[0].strip()} Tables: {', '.join(TABLES)}."
    text, _, functions = text.partition("Candidate functions:")
    if functions and "VARCHAR" in text:
        text += TEXTS
    return " ".join(text.split())
