"""`otel-rl query` as a user types it."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from typer.testing import CliRunner

from otel_rl.cli import app
from otel_rl.query.run_schema import TABLES
from tests.made_runs import write_run

pytestmark = pytest.mark.medium

cli = CliRunner()
LATE = "SELECT CAST(CASE WHEN range = 5000000 THEN 'x' ELSE '1' END AS BIGINT) FROM range(9000000)"
"""Is wrong after many rows."""
BY_RANK = "SELECT rank, count(*) AS steps, NULL AS nothing FROM steps GROUP BY rank ORDER BY rank"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs"))


def test_a_table_on_the_screen(run: Path) -> None:
    """Names above, numbers to the right."""
    result = cli.invoke(app, ["query", str(run), BY_RANK])
    assert (0, "") == (result.exit_code, result.stderr)
    assert [["rank", "steps", "nothing"], ["0", "12"], ["1", "12"]] == [
        one.split() for one in result.stdout.split("\n") if one
    ]


def test_a_long_table_is_cut(run: Path) -> None:
    """And it says so."""
    result = cli.invoke(app, ["query", str(run), "SELECT range FROM range(1000)"])
    assert 101 == len(result.stdout.splitlines())
    assert "otel-rl: these are the first 100 rows; --format csv has all\n" == result.stderr


def test_an_empty_answer_says_so(run: Path) -> None:
    """A name that no stage has is no error of SQL."""
    result = cli.invoke(app, ["query", str(run), "SELECT rank FROM stages WHERE stage = 'sample'"])
    assert (0, ["rank"], "otel-rl: no row fits the query\n") == (
        result.exit_code,
        result.stdout.split(),
        result.stderr,
    )


@pytest.fixture
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rich.console.Console.is_terminal", True)


@pytest.mark.usefixtures("_terminal")
def test_columns_without_room_are_named(run: Path) -> None:
    """Those that are shown are in one piece."""
    sql = "SELECT * FROM steps WHERE step < 3"
    result = cli.invoke(app, ["query", str(run), sql], env={"COLUMNS": "80", "TERM": "dumb"})
    assert 5 == len(result.stdout.splitlines())
    assert "otel-rl: no room for begin_time, end_time, duration_s and 16 more: name the columns " in result.stderr
    assert 80 >= max(map(len, result.stdout.splitlines()))


@pytest.mark.usefixtures("_terminal")
def test_a_single_row_without_room_is_a_list(run: Path) -> None:
    """A column a line."""
    sql = "SELECT * FROM steps WHERE step = 1 AND rank = 1"
    result = cli.invoke(app, ["query", str(run), sql], env={"COLUMNS": "80", "TERM": "dumb"})
    steps = TABLES["steps"].columns
    assert ([one.name for one in steps], "") == ([one.split()[0] for one in result.stdout.splitlines()], result.stderr)


def test_a_pipe_gets_all_columns(run: Path) -> None:
    """As wide as they are."""
    heads, *_ = cli.invoke(app, ["query", str(run), "SELECT * FROM steps"]).stdout.splitlines()
    assert [one.name for one in TABLES["steps"].columns] == heads.split()


def test_csv_and_json(run: Path, tmp_path: Path) -> None:
    """On standard output or in a file; a map is JSON in a cell; NaN is null in JSON."""
    assert (
        "rank,steps,nothing\n0,12,\n1,12,\n" == cli.invoke(app, ["query", str(run), BY_RANK, "--format", "csv"]).stdout
    )
    found = cli.invoke(app, ["query", str(run), BY_RANK, "--format", "json"]).stdout
    assert [{"rank": 0, "steps": 12, "nothing": None}, {"rank": 1, "steps": 12, "nothing": None}] == json.loads(found)
    spans = "SELECT attributes, begin_time, 'nan'::DOUBLE AS x FROM spans WHERE name = 'rl.loop' AND step = 1"
    (row,) = json.loads(cli.invoke(app, ["query", str(run), spans, "--format", "json"]).stdout)
    assert ("1", "2023-11-14", None) == (row["attributes"]["rl.loop.iteration"], row["begin_time"][:10], row["x"])
    assert [] == json.loads(cli.invoke(app, ["query", str(run), f"{spans} LIMIT 0", "--format", "json"]).stdout)
    file = tmp_path / "spans.csv"
    result = cli.invoke(app, ["query", str(run), spans, "--format", "csv", "-o", str(file)])
    assert (0, "") == (result.exit_code, result.output)
    with file.open(encoding="utf-8", newline="") as lines:
        assert row["attributes"] == json.loads(next(csv.DictReader(lines))["attributes"])


def test_nan_inside_a_value_is_null(run: Path) -> None:
    """In JSON, and in a cell of CSV that is JSON."""
    sql = "SELECT [1.5, 'nan'::DOUBLE] AS list, {'a': ['inf'::DOUBLE]} AS map"
    whole = {"list": [1.5, None], "map": {"a": [None]}}
    assert [whole] == json.loads(cli.invoke(app, ["query", str(run), sql, "--format", "json"]).stdout)
    (row,) = csv.DictReader(cli.invoke(app, ["query", str(run), sql, "--format", "csv"]).stdout.splitlines())
    assert whole == {name: json.loads(cell) for name, cell in row.items()}


def test_parquet(run: Path, tmp_path: Path) -> None:
    """Only into the file that is named; others can read it."""
    file = tmp_path / "it's.parquet"
    sql = "SELECT rank, step, duration_s FROM steps -- all\n;"
    result = cli.invoke(app, ["query", str(run), sql, "--format", "parquet", "--output", str(file)])
    assert (0, "") == (result.exit_code, result.output)
    assert 24 == len(duckdb.read_parquet(str(file)).fetchall())
    assert [file] == list(tmp_path.iterdir())
    result = cli.invoke(app, ["query", str(run), sql, "--format", "parquet"])
    assert (2, True) == (result.exit_code, "--format parquet needs --output" in result.stderr)
    result = cli.invoke(app, ["query", str(run), sql, "--format", "parquet", "-o", str(tmp_path / "no" / "x")])
    assert (1, 1) == (result.exit_code, len(result.stderr.splitlines()))


def test_without_sql_the_tables_are_listed() -> None:
    """All, with all columns; no run is read."""
    text = cli.invoke(app, ["query"], env={"COLUMNS": "200"}).stdout
    assert [] == [one.name for table in TABLES.values() for one in (table, *table.columns) if one.name not in text]


def test_sql_alone_asks_the_newest_run(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a report without a name shows it."""
    monkeypatch.setenv("OTEL_RL_DIR", str(run.parent))
    assert "n\n24\n" == cli.invoke(app, ["query", "SELECT count(*) AS n FROM steps", "--format", "csv"]).stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["SELECT rnk FROM steps"], 1, '"rnk" not found'),
        (["DROP TABLE steps"], 1, "a query only reads"),
        (["FROM read_text('/etc/hostname')"], 1, "disabled by configuration"),
        (["SELECT 1", "--memory", "much"], 1, "memory 'much'"),
        ([LATE, "--format", "csv", "-o", os.devnull], 1, "Could not convert string 'x'"),
    ],
)
def test_what_is_wrong_is_one_line(run: Path, arguments: list[str], code: int, message: str) -> None:
    """On standard error."""
    result = cli.invoke(app, ["query", str(run), *arguments])
    assert (code, "", 1, True) == (
        result.exit_code,
        result.stdout,
        len(result.stderr.splitlines()),
        message in result.stderr,
    )
    assert 3 == cli.invoke(app, ["query", str(run / "none"), "SELECT 1"]).exit_code


def test_a_reader_that_goes_away(run: Path) -> None:
    """`| head` ends it silently."""
    command = [
        sys.executable,
        "-m",
        "otel_rl",
        "query",
        str(run),
        "SELECT range FROM range(1000000)",
        "--format",
        "csv",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert (b"", 0) == (process.stderr.read(), process.wait())
