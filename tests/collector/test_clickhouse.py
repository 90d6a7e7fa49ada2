"""The views over the tables of the Collector's ClickHouse exporter: rows and answers are those of DuckDB."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.analysis.goodput import KIND_OF_STAGE
from otel_rl.catalogue.table_questions import TABLE_QUESTIONS, TableQuestion
from otel_rl.journal.read import open_run
from otel_rl.query.engine import RunTables
from otel_rl.query.run_schema import TABLES, SqlColumn
from tests.collector.exported_rows import ROOT, fill, statements
from tests.fixtures import Recording
from tests.report.test_stored_reports import RUNS

if TYPE_CHECKING:
    from chdb.session import Session

pytestmark = pytest.mark.slow

ASKED = ("healthy", "slow_rank_of_8", "restarted", "driven")
DRIVEN = ("driven",)
CLOSED = ("restarted",)
"""Runs with stages that a reader closed: the sidecar sends them as spans."""
OF_ALL_RANKS = ("slowest rank", "rank times", "waits", "tokens")
"""Questions whose answers have rows of the workers of a driver, which the views do not have."""
VIEWS = tuple(name for name in TABLES if name != "curves")


@dataclass
class Both:
    """A run in both engines."""

    name: str
    tables: RunTables
    session: Session
    database: str

    def select(self, sql: str, database: str = "") -> list[list[Any]]:
        """Return the rows that ClickHouse selects."""
        self.session.query(f"USE {database or self.database}")
        rows = self.session.query(sql, "JSONCompactEachRow")
        return [json.loads(line) for line in str(rows).splitlines()]


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """Start the engine, which blocks signals of the whole process when it is imported."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    from chdb.session import Session

    with Session() as session:
        session.query("SET cast_keep_nullable = 1, output_format_json_quote_denormals = 1")
        yield session
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


@pytest.fixture(scope="module", params=ASKED)
def both(request: pytest.FixtureRequest, session: Session, tmp_path_factory: pytest.TempPathFactory) -> Both:
    """Fill a database as the exporter does, and one with the rows of the views, which are asked more than once."""
    path: Path = RUNS[request.param](tmp_path_factory.mktemp("run"))
    name = request.param
    session.query(f"CREATE DATABASE {name}")
    session.query(f"USE {name}")
    fill(session, open_run(path), tmp_path_factory.mktemp("rows"))
    session.query(f"CREATE DATABASE {name}_rows")
    for view in VIEWS:
        session.query(f"CREATE TABLE {name}_rows.{view} ENGINE = Memory AS SELECT * FROM {name}.{view}")
    return Both(name, RunTables(open_run(path)), session, f"{name}_rows")


def plain(rows: list[Any]) -> list[tuple[Any, ...]]:
    """Return rows in an order of their own, with numbers and times as both engines can say them."""
    return sorted((tuple(map(_plain, row)) for row in rows), key=lambda row: tuple(map(_rank, row)))


def _plain(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        return pytest.approx(value, rel=1e-9, abs=1e-12)
    return re.sub(r"(:\d\d)\.0+$", r"\1", str(value))


def _rank(value: Any) -> str:
    expected = getattr(value, "expected", value)
    return f"{expected:.6e}" if isinstance(expected, int | float) else str(expected)


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_has_the_columns_of_the_table(both: Both, view: str) -> None:
    """In their order."""
    named = f"table = '{view}' AND database = '{both.name}'"
    names = both.select(f"SELECT name FROM system.columns WHERE {named} ORDER BY position")
    assert [column.name for column in TABLES[view].columns] == [name for (name,) in names]


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_has_the_rows_of_the_table(both: Both, view: str) -> None:
    """All but those of the workers of a driver, and with the spans that were closed for dead processes."""
    columns = [one for one in TABLES[view].columns if (view, one.name) != ("points", "time")]  # whole seconds
    names = [one.name for one in columns]
    where = " WHERE attributes['rl.truncated'] IS NULL" if view == "spans" else ""
    guests = " WHERE NOT is_guest" if "is_guest" in names else where
    duck, house = ([_column(one, *of) for one in columns] for of in (DUCK, HOUSE))
    expected = both.tables.execute(f"SELECT {', '.join(duck)} FROM {view}{guests}").fetchall()
    if both.name in DRIVEN and view in ("waits", "calls"):
        drivers = both.tables.execute("SELECT DISTINCT role FROM steps WHERE NOT is_guest").fetchall()
        expected = [row for row in expected if (row[names.index("role")],) in drivers]
    assert plain(expected) == plain(both.select(f"SELECT {', '.join(house)} FROM {view}{where}"))


DUCK = ("epoch_ns({})", "list_sort(map_keys({}))")
HOUSE = ("toUnixTimestamp64Nano({})", "arraySort(mapKeys({}))")


def _column(column: SqlColumn, time: str, keys: str) -> str:
    form = time if column.type == "TIMESTAMP_NS" else keys if column.type.startswith("MAP") else "{}"
    return form.format(column.name)


@pytest.mark.parametrize("question", TABLE_QUESTIONS, ids=lambda question: question.name)
def test_a_question_has_the_same_answer(both: Both, question: TableQuestion) -> None:
    """The ten documented ones, word for word."""
    if both.name in DRIVEN and question.name in OF_ALL_RANKS:
        pytest.skip("its answer has the workers of a driver, which the views do not have")
    if both.name in CLOSED and question.name in ("memory", "by hour"):
        pytest.skip("its answer has the spans that were closed for the dead")
    expected = both.tables.execute(question.sql).fetchall()
    assert plain(expected) == plain(both.select(question.sql))


def test_the_stages_of_the_views_are_those_of_the_analysis() -> None:
    """Which stage is of another kind than the one around it depends on them."""
    (known,) = (one for one in statements() if "FUNCTION rl_is_known" in one)
    assert {*re.findall(r"'([^']+)'", known)} == KIND_OF_STAGE.keys()


def test_the_log_records_have_what_curves_would(session: Session, recording: Recording, tmp_path: Path) -> None:
    """By the question of the README, which is the same on both engines."""
    for number in range(1, 4):
        with otel_rl.step(number):
            with otel_rl.stage("sample"):
                recording.tick(5)
            otel_rl.record(v.REWARD_SCORE, number / 4)
            recording.tick(5)
    run = recording.stop()
    session.query("CREATE DATABASE logged")
    session.query("USE logged")
    fill(session, run, tmp_path)
    (sql,) = re.findall(r"```sql\n(.*?)```", (ROOT / "collector" / "README.md").read_text(), re.DOTALL)
    rows = [json.loads(line) for line in str(session.query(sql, "JSONCompactEachRow")).splitlines()]
    tables = RunTables(run)
    curve = f"SELECT step, value FROM curves WHERE metric = '{v.REWARD_SCORE}' ORDER BY step"
    assert [(1, 0.25), (2, 0.5), (3, 0.75)] == tables.execute(curve).fetchall() == tables.execute(sql).fetchall()
    assert plain(tables.execute(sql).fetchall()) == plain(rows)


def test_what_is_sent_twice_counts_once(both: Both) -> None:
    """A Collector sends again what got no answer."""
    if both.name != "healthy":
        pytest.skip("one run shows it")
    both.select("SELECT 1", both.name)
    both.session.query("INSERT INTO otel_traces SELECT * FROM otel_traces")
    assert both.select("SELECT count() FROM spans", both.name) == both.select("SELECT count() FROM spans")
