"""Tests of what SQL may do with a run, and of what it says if it may not."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import otel_rl
from otel_rl.journal.read import JournalNotFound, open_run
from otel_rl.query import engine
from otel_rl.query.engine import QueryError, RunTables
from otel_rl.query.run_schema import TABLES
from tests.made_runs import Plan, write_run

pytestmark = pytest.mark.medium

ENDLESS = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(1000000) b"
INTERRUPTED = """
import os, signal, sys, threading
from otel_rl.query.engine import RunTables
from otel_rl.journal.read import open_run
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())
tables = RunTables(open_run(sys.argv[1]))
threading.Timer(1, os.kill, (os.getpid(), int(sys.argv[3]))).start()
try:
    tables.execute(sys.argv[2])
except (KeyboardInterrupt, SystemExit):
    print("interrupted")
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def tables(run: Path) -> RunTables:
    return RunTables(open_run(run))


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_the_columns_of_the_schema(tables: RunTables, name: str) -> None:
    """In their order, with their types, also where the run has no row."""
    relation = getattr(tables, name)
    assert [one.name for one in TABLES[name].columns] == relation.columns
    assert [one.type for one in TABLES[name].columns] == list(map(str, relation.types))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM read_csv('/etc/hostname')",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM '/etc/hostname.csv'",
        "SELECT * FROM read_parquet('http://127.0.0.1:1/x.parquet')",
        "COPY steps TO '{path}'",
        "ATTACH '{path}'",
        "EXPORT DATABASE '{path}'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "EXPLAIN ANALYZE COPY steps TO '{path}'",
        "EXPLAIN ANALYZE DROP TABLE steps",
        "CREATE TABLE mine AS SELECT 1",
        "DROP TABLE steps",
        "INSERT INTO steps SELECT * FROM steps",
        "SELECT 1; DROP TABLE steps",
        "SELECT * FROM query('COPY steps TO ''{path}''')",
    ],
)
def test_sql_reaches_no_file_and_changes_nothing(tables: RunTables, sql: str, tmp_path: Path) -> None:
    """It is refused in one line; reading goes on."""
    with pytest.raises(QueryError) as refused:
        tables.execute(sql.replace("{path}", str(tmp_path / "out"))).fetchall()
    assert "\n" not in str(refused.value)
    assert [] == list(tmp_path.iterdir())
    assert [(24,)] == tables.execute("SELECT count(*) FROM steps").fetchall()


def test_python_is_out_of_reach(tables: RunTables) -> None:
    """DuckDB would look for a table among the variables of the program."""
    mine = {"x": [1]}
    with pytest.raises(QueryError, match="mine does not exist"):
        tables.execute("SELECT * FROM mine")
    assert mine


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT rnk FROM steps", r'"rnk" not found.*"rank"'),
        ("SELECT * FROM stepps", r"stepps does not exist! Tables: steps, stages"),
        ("SELEC 1", r'syntax error at or near "SELEC"'),
        ("", "a query is one statement; these are 0"),
        ("SELECT 1; SELECT 2", "a query is one statement; these are 2"),
        ("DELETE FROM steps", "a query only reads: it begins with SELECT, FROM or WITH, and this is DELETE"),
        ("SELECT nothing(1)", 'Function with name "?nothing"? does not exist'),
        ("SELECT CAST(name AS BIGINT) FROM spans", "Could not convert string"),
        (
            "SELECT avg(attributes['rl.tokens']) FROM spans",
            r"explicit type casts\. Attributes and labels are texts: CAST",
        ),
    ],
)
def test_what_is_wrong_is_a_sentence(tables: RunTables, sql: str, message: str) -> None:
    """With the nearest names, before the run is read."""
    with pytest.raises(QueryError, match=message):
        tables.execute(sql).fetchall()


def test_a_wrong_query_reads_nothing(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading may take a minute."""
    monkeypatch.setattr(RunTables, "_make", lambda *_: pytest.fail("it was read"))
    with pytest.raises(QueryError):
        RunTables(open_run(run)).execute("SELECT rnk FROM spans")


def test_tables_are_found_however_they_are_named(tables: RunTables) -> None:
    """Below other names, in quotes, in another case, in a subquery, by a function."""
    whole = tables.execute("SELECT count(*) FROM spans").fetchall()
    for sql in (
        "WITH steps AS (FROM spans) SELECT count(*) FROM steps",
        'SELECT count(*) FROM "spans" AS x',
        "SELECT count(*) FROM main.SPANS",
        "SELECT (SELECT count(*) FROM spans)",
        "SELECT count(*) FROM query_table('spans')",
    ):
        assert whole == RunTables(open_run(tables.path)).execute(sql).fetchall()


def test_memory_is_limited(run: Path) -> None:
    """A query that needs more ends."""
    with pytest.raises(QueryError, match="this needs more memory than the 100MB that it may use"):
        RunTables(open_run(run), memory="100MB").execute("SELECT list(range) FROM range(100000000)").fetchall()
    with pytest.raises(QueryError, match="memory 'much'"):
        RunTables(open_run(run), memory="much")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_query_can_be_interrupted(run: Path, number: signal.Signals) -> None:
    """By Ctrl-C, and by a signal that ends the program as an exception does."""
    command = [sys.executable, "-c", INTERRUPTED, str(run), ENDLESS, str(int(number))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "interrupted\n" == done.stdout


def test_reading_writes_nothing_to_a_run(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cache of what was read, however large."""
    monkeypatch.setattr(engine.cache, "LEAST_BYTES", 0)
    monkeypatch.setattr(engine.cache, "LEAST_SHARE", 0)
    before = {file: file.stat().st_mtime_ns for file in run.iterdir()}
    found = otel_rl.read(run)
    assert 24 == len(found.steps.fetchall())
    assert [(12,)] == found.query("SELECT count(*) FROM steps WHERE rank = 1").fetchall()
    assert before == {file: file.stat().st_mtime_ns for file in run.iterdir()}
    RunTables(open_run(run), keeps=True).execute("FROM steps")
    assert {"report.cache"} == {file.name for file in run.iterdir()} - {file.name for file in before}
    (run / "report.cache").unlink()


def test_a_run_that_is_none(tmp_path: Path) -> None:
    """As with every command; a table that is none is an attribute that is none."""
    with pytest.raises(JournalNotFound, match="nothing was recorded there"):
        otel_rl.read(tmp_path)
    with pytest.raises(AttributeError, match="a run has no table 'stepps'; it has steps"):
        _ = otel_rl.read(write_run(tmp_path, Plan(steps=1, ranks=1))).stepps


def test_without_the_engine(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what to install."""
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'otel-rl\[query\]'"):
        otel_rl.read(run)
