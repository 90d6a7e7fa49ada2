"""The ten documented questions, each against the report of the same run, or what the journal has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from otel_rl import vocabulary as v
from otel_rl.catalogue import run_tables
from otel_rl.catalogue.table_questions import TABLE_QUESTIONS
from otel_rl.journal.read import Run, SpanView, open_run
from otel_rl.query.engine import RunTables
from otel_rl.report.build import build_report
from otel_rl.report.data.report import Report
from otel_rl.report.read.span_attributes import rank_of
from otel_rl.report.reading import read_run
from otel_rl.report.source import Source
from otel_rl.runs.spans import iteration_of, label
from tests.report.test_stored_reports import NOW_NS, RUNS

pytestmark = pytest.mark.medium

ASKED = ("healthy", "slow_rank_of_8", "killed", "restarted", "driven", "trl_demo", "verl_sync", "fsdp2_four_ranks")
"""Runs of many kinds: with a driver and without, that ended well and not, of real trainings and made ones."""


@dataclass
class Asked:
    """A run, its report, and its tables."""

    run: Run
    report: Report
    tables: RunTables

    def rows(self, name: str) -> list[dict[str, Any]]:
        (sql,) = (question.sql for question in TABLE_QUESTIONS if question.name == name)
        found = self.tables.execute(sql)
        names = [column[0] for column in found.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def spans_of_steps(self) -> Iterator[tuple[SpanView, int]]:
        spans = list(self.run.spans(None))
        step = {span.trace_id: iteration_of(span.attributes) for span in spans if v.ITERATION in span.attributes}
        for span in spans:
            if (of := step.get(span.trace_id)) is not None:
                yield span, of


@pytest.fixture(scope="module", params=ASKED)
def asked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Asked:
    path: Path = RUNS[request.param](tmp_path_factory.mktemp("run"))
    return Asked(open_run(path), build_report(open_run(path), NOW_NS), RunTables(open_run(path)))


def close(value: Any) -> Any:
    return pytest.approx(value, rel=1e-9, abs=1e-12)


def test_step_time(asked: Asked) -> None:
    """As the head says it."""
    steps = asked.report.steps
    expected = {"steps": steps.averaged, "median_s": close(steps.median_s), "p95_s": close(steps.p95_s)}
    assert [expected] == asked.rows("step time")


def test_stages(asked: Asked) -> None:
    """Every row that is of the step; what ranks do inside the stages of their driver is another table's."""
    found = {(row["stage"], row["inside"]): (row["calls"], row["share"]) for row in asked.rows("stages")}
    assert found
    reported = {(row.stage, row.inside or ""): (row.calls, close(row.share)) for row in asked.report.stages}
    assert {key: reported[key] for key in found} == found
    assert asked.report.roles or found.keys() == reported.keys()


def test_slowest_rank(asked: Asked) -> None:
    """Every number of the comparison of ranks; one without the stage has no row."""
    found = {(row["stage"], row["role"], row["rank"]): row["own_s"] for row in asked.rows("slowest rank")}
    expected = {(row.stage, one.role, one.rank): one.own_s for row in asked.report.balance for one in row.own}
    assert {key: close(value) for key, value in expected.items()} == {key: found.get(key, 0.0) for key in expected}


def test_rank_times(asked: Asked) -> None:
    """Of the ranks that hold devices; a driver has a row of its own here."""
    found = {(row.pop("role"), row.pop("rank")): row for row in asked.rows("rank times")}
    for one in asked.report.efficiency.ranks:
        row = found[one.role, one.rank]
        assert {name: close(getattr(one, name)) for name in row} == row


def test_waits(asked: Asked) -> None:
    """By rank they are the waits of the report; a rank waits in a step at most as long as it is in collectives."""
    found: defaultdict[tuple[str, int], float] = defaultdict(float)
    for row in asked.rows("waits"):
        found[row["role"], row["rank"]] += row["waited_s"]
    for one in asked.report.efficiency.ranks:
        assert found[one.role, one.rank] == close(one.wait_s * one.steps)


def test_tail(asked: Asked) -> None:
    """The slowest spans of requests, the first of which no row of the report is above."""
    requests = [span for span in asked.run.spans(None) if v.SUBMISSION in span.attributes]
    durations = sorted(((span.end_ns - span.start_ns) / 1e9 for span in requests), reverse=True)
    rows = asked.rows("tail")
    assert [close(duration) for duration in durations[:10]] == [row["duration_s"] for row in rows]
    assert len(requests) == asked.report.requests.spans
    known = {span.attributes.get(v.SAMPLE_ID, "") for span in requests}
    assert {row["sample_id"] for row in rows} <= known


def test_tokens(asked: Asked) -> None:
    """What each rank handled, but not the trajectories that are traces of their own."""
    found = {(row.pop("role"), row.pop("rank")): row for row in asked.rows("tokens")}
    for one in asked.report.work:
        if (row := found.get((one.role, one.rank))) is not None and asked.report.trajectories is None:
            assert {name: getattr(one, name) for name in row} == row


def test_two_steps(asked: Asked) -> None:
    """Means over the ranks, of what the report is made of."""
    source = Source(open_run(asked.run.path), NOW_NS, read_run(open_run(asked.run.path)))
    records = [record for record in source.found.steps if not record.is_guest]
    whole = [record.step.iteration for record in records if not record.is_truncated]
    times: defaultdict[tuple[str, str, int], list[float]] = defaultdict(list)
    for record in records:
        for path, stage in record.stages.items():
            times[path[-1], path[-2] if len(path) > 1 else "", record.step.iteration].append(stage.busy_ns / 1e9)
    found = {(row["stage"], row["inside"]): row for row in asked.rows("two steps") if row["stage"] != v.OTHER}
    assert found
    for (stage, inside), row in found.items():
        for name, step in (("first_s", min(whole)), ("last_s", max(whole))):
            expected = times.get((stage, inside, step))
            assert row[name] == (close(sum(expected) / len(expected)) if expected else None)


def test_memory(asked: Asked) -> None:
    """The last step's is the peak of the report, if that is of the containers."""
    expected: dict[tuple[str, int, int], int | None] = {}
    for span, step in asked.spans_of_steps():
        rank = rank_of(span.resource)
        before, peak = expected.get((rank.role, rank.rank, step)), span.attributes.get(v.RSS_PEAK)
        sizes = [one for one in (before, peak) if isinstance(one, int)]
        expected[rank.role, rank.rank, step] = max(sizes, default=None)
    rows = asked.rows("memory")
    assert expected == {(row["role"], row["rank"], row["step"]): row["peak_bytes"] for row in rows}


def test_by_hour(asked: Asked) -> None:
    """Spans of steps by the name that the report gives their stage."""
    expected: defaultdict[tuple[datetime, str], list[float]] = defaultdict(list)
    for span, _ in asked.spans_of_steps():
        if (stage := label(span.name, span.attributes)).startswith("rl."):
            hour = datetime(1970, 1, 1) + timedelta(hours=span.start_ns // 3_600_000_000_000)
            expected[hour, stage].append((span.end_ns - span.start_ns) / 1e9)
    rows = asked.rows("by hour")
    found = {(row["hour"], row["stage"]): (row["calls"], row["median_s"]) for row in rows}
    assert {key: (len(times), close(median(times))) for key, times in expected.items()} == found


CHECKS: dict[str, Callable[[Asked], None]] = {
    name.removeprefix("test_").replace("_", " "): check
    for name, check in list(globals().items())
    if name.startswith("test_")
}


def test_there_are_ten_and_each_is_checked() -> None:
    """By a test of its name."""
    assert 10 == len(TABLE_QUESTIONS)
    assert CHECKS.keys() == {question.name for question in TABLE_QUESTIONS}


def test_the_documented_page_is_the_rendered_one() -> None:
    """The file in docs/ is what schema and questions say today."""
    page = Path(__file__).parents[2] / "docs" / "tables.md"
    assert run_tables.render() == page.read_text(encoding="utf-8")
