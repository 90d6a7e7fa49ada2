"""Tests of the tables that are what was journaled: every row as the readers of the journal have it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from otel_rl import vocabulary as v
from otel_rl.journal.read import open_run
from otel_rl.query import span_tables
from otel_rl.query.engine import RunTables
from otel_rl.records import Value
from otel_rl.report.read.span_attributes import rank_of
from otel_rl.runs.spans import label
from tests.made_runs import FakeSpan, Plan, Recording
from tests.made_runs import write_rank as write_records
from tests.report.test_stored_reports import RUNS

pytestmark = pytest.mark.medium
STATUS = ("unset", "ok", "error")


def plain(attributes: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return attributes as texts; doubles, which two programs write differently, as numbers."""
    return sorted((key, plain_value(value)) for key, value in attributes.items())


def plain_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + ", ".join(f'"{one}"' if isinstance(one, str) else str(one) for one in value) + "]"
    try:
        return repr(float(value))
    except ValueError:
        return str(value)


@pytest.mark.parametrize("parts", [span_tables.MOST_PARTS, 2, 0])
@pytest.mark.parametrize("name", ["trl_demo", "roll_async", "damaged", "device_clock", "driven_tools"])
def test_spans(name: str, parts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them with all attributes, as columns or as lists."""
    monkeypatch.setattr(span_tables, "MOST_PARTS", parts)
    run = open_run(RUNS[name](tmp_path))
    expected = sorted(
        (
            *(span.trace_id.hex(), span.span_id.hex(), span.parent_id.hex(), span.name),
            *(label(span.name, span.attributes), span.start_ns, span.end_ns, STATUS[span.status_code]),
            *(rank_of(span.resource).role, rank_of(span.resource).rank, plain(span.attributes)),
        )
        for span in run.spans(None)
    )
    rows = RunTables(run).execute(
        "SELECT trace_id, span_id, parent_id, name, stage, epoch_ns(begin_time), epoch_ns(end_time), status, role, "
        "rank, attributes FROM spans"
    )
    assert expected
    assert expected == sorted((*row[:-1], plain(row[-1])) for row in rows.fetchall())


@pytest.mark.parametrize("name", ["trl_demo", "verl_sync"])
def test_points_and_logs(name: str, tmp_path: Path) -> None:
    """All of them; a histogram has a count and a sum, the others a value."""
    run = open_run(RUNS[name](tmp_path))
    tables = RunTables(run)
    points = tables.execute("SELECT metric, kind, unit, epoch_ns(time), value, count, sum, labels FROM points")
    expected = [
        (
            *(point.name, point.kind, point.unit, point.time_ns),
            *((None, point.count, point.sum) if point.kind == "histogram" else (float(point.value), None, None)),
            plain(point.attributes),
        )
        for point in run.points()
    ]
    assert expected
    assert sorted(map(repr, expected)) == sorted(repr((*row[:-1], plain(row[-1]))) for row in points.fetchall())
    logs = tables.execute("SELECT event, epoch_ns(time), body, severity, trace_id, span_id, attributes FROM logs")
    assert sorted((*row[:-1], plain(row[-1])) for row in logs.fetchall()) == sorted(
        (
            log.event_name,
            log.time_ns,
            log.body,
            log.severity,
            log.trace_id.hex(),
            log.span_id.hex(),
            plain(log.attributes),
        )
        for log in run.logs()
    )


def test_curves(tmp_path: Path) -> None:
    """Every series of the report, whole."""
    from otel_rl.report.build import build_report
    from tests.report.test_stored_reports import NOW_NS

    path = RUNS["nan_loss_and_losses"](tmp_path)
    report = build_report(open_run(path), NOW_NS)
    rows = RunTables(open_run(path)).execute("SELECT metric, labels, step, value FROM curves").fetchall()
    assert [
        (series.name, series.qualifiers, step, value)
        for series in report.series + report.numbers
        for step, value in zip(series.steps, series.values, strict=True)
    ] == rows
    assert None in [value for *_, value in rows]


def test_requests(tmp_path: Path) -> None:
    """Their numbers are those of the spans."""
    run = open_run(RUNS["trl_demo"](tmp_path))
    rows = RunTables(run).execute(
        "SELECT span_id, engine, ttft_s, queue_s, tpot_s, input_tokens, output_tokens, cached_tokens, sample_id, "
        "group_id FROM requests"
    )
    keys = (
        *(v.PROVIDER, v.REQUEST_TTFT, v.REQUEST_QUEUE, v.REQUEST_TPOT, v.INPUT_TOKENS, v.OUTPUT_TOKENS),
        *(v.CACHED_TOKENS, v.SAMPLE_ID, v.GROUP_ID),
    )
    assert {
        (span.span_id.hex(), *map(span.attributes.get, keys))
        for span in run.spans(None)
        if v.SUBMISSION in span.attributes
    } == set(rows.fetchall())


@pytest.mark.parametrize("parts", [span_tables.MOST_PARTS, 0])
def test_attributes_of_any_name_and_type(parts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that differ in case only, quotes, a name with values of two types, a million names."""
    monkeypatch.setattr(span_tables, "MOST_PARTS", parts)
    attributes: list[dict[str, Value]] = [
        {"Name": "a", "name": "b"},
        {"it's": 1, 'so "it" is': 2.5, "a\nb": True, "ü": "ü'"},
        {"x": 1},
        {"x": "one"},
        {"x": (1, 2), "NULL": "NULL"},
        {},
        *({f"user.{number}": number} for number in range(200)),
    ]
    spans = [FakeSpan("a", 1, number, 0, 1, 2, one) for number, one in enumerate(attributes, 1)]
    write_records(tmp_path / "run", Plan(), 0, Recording(spans))
    rows = RunTables(open_run(tmp_path / "run")).execute("SELECT attributes FROM spans ORDER BY span_id").fetchall()
    assert list(map(plain, attributes)) == [plain(one) for (one,) in rows]


def test_a_run_without_spans_has_empty_tables(tmp_path: Path) -> None:
    """Nothing fails."""
    run = open_run(RUNS["healthy"](tmp_path))
    for file in run.path.glob("*.traces.*"):
        file.unlink()
    tables = RunTables(open_run(run.path))
    for name in ("spans", "requests", "steps", "stages", "waits", "calls"):
        assert [(0,)] == tables.execute(f"SELECT count(*) FROM {name}").fetchall()
    assert tables.execute("SELECT count(*) FROM points").fetchall()[0][0]
