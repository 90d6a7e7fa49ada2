"""Rows as the Collector's ClickHouse exporter writes them, in an embedded ClickHouse."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from chdb.session import Session

from otel_rl.cli.orphans import Orphans
from otel_rl.journal.read import Run
from otel_rl.runs.otlp_json import lines

ROOT: Final = Path(__file__).parents[2]
MAP: Final = "Map(LowCardinality(String), String)"
OF_POINTS: Final = {
    "ResourceAttributes": MAP, "ServiceName": "LowCardinality(String)", "MetricName": "LowCardinality(String)",
    "MetricUnit": "String", "Attributes": MAP, "StartTimeUnix": "DateTime", "TimeUnix": "DateTime",
}  # fmt: skip
HISTOGRAM: Final = {**OF_POINTS, "Count": "UInt64", "Sum": "Float64"}
TABLES: Final = {
    "otel_traces": {
        "Timestamp": "DateTime64(9)", "TraceId": "String", "SpanId": "String", "ParentSpanId": "String",
        "SpanName": "LowCardinality(String)", "ServiceName": "LowCardinality(String)", "ResourceAttributes": MAP,
        "ScopeName": "String", "SpanAttributes": MAP, "Duration": "UInt64", "StatusCode": "LowCardinality(String)",
    },
    "otel_logs": {
        "Timestamp": "DateTime64(9)", "TraceId": "String", "SpanId": "String", "SeverityNumber": "UInt8",
        "ServiceName": "LowCardinality(String)", "Body": "String", "ResourceAttributes": MAP, "LogAttributes": MAP,
        "EventName": "String",
    },
    "otel_metrics_gauge": {**OF_POINTS, "Value": "Float64"},
    "otel_metrics_sum": {**OF_POINTS, "Value": "Float64"},
    "otel_metrics_histogram": HISTOGRAM,
    "otel_metrics_exponential_histogram": HISTOGRAM,
}  # fmt: skip
"""The columns of the exporter's tables that the views read, with its types; it has more."""
STATUS: Final = ("Unset", "Ok", "Error")
Row = dict[str, Any]


def fill(session: Session, run: Run, folder: Path) -> None:
    """Make the exporter's tables with the records of a run, and the views over them."""
    for name, columns in TABLES.items():
        said = ", ".join(f"`{column}` {type}" for column, type in columns.items())
        session.query(f"CREATE TABLE {name} ({said}) ENGINE = MergeTree ORDER BY ServiceName")
        file = folder / f"{name}.jsonl"
        with file.open("w") as opened:
            opened.writelines(json.dumps(row) + "\n" for row in rows(run, name))
        session.query(
            f"INSERT INTO {name} SELECT * FROM file('{file}', JSONEachRow, '{said}') "
            "SETTINGS input_format_json_read_numbers_as_strings = 1, date_time_input_format = 'best_effort'"
        )
    for statement in statements():
        session.query(statement)


def statements() -> list[str]:
    """Return the statements of the file, without its comments."""
    text = (ROOT / "collector" / "clickhouse.sql").read_text()
    code = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    return [one.strip() for one in code.split(";") if one.strip()]


def rows(run: Run, table: str) -> Iterator[Row]:
    """Yield the rows of a table: of each record what the exporter writes."""
    for line, _ in (*lines(run), *Orphans(run).lines()):
        for signal, of_signal in READ.items():
            for group in json.loads(line).get(signal, ()):
                resource = texts(group.get("resource", {}))
                head = {"ResourceAttributes": resource, "ServiceName": resource.get("service.name", "")}
                yield from (head | row for name, row in of_signal(group) if name == table)


def _spans(group: Any) -> Iterator[tuple[str, Row]]:
    for scope in group["scopeSpans"]:
        for span in scope["spans"]:
            begin, end = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
            yield (
                "otel_traces",
                {
                    "Timestamp": decimal(begin),
                    "TraceId": span["traceId"],
                    "SpanId": span["spanId"],
                    "ParentSpanId": span.get("parentSpanId", ""),
                    "SpanName": span.get("name", ""),
                    "ScopeName": scope.get("scope", {}).get("name", ""),
                    "SpanAttributes": texts(span),
                    "Duration": (end - begin) % 2**64,
                    "StatusCode": STATUS[span.get("status", {}).get("code", 0)],
                },
            )


def _logs(group: Any) -> Iterator[tuple[str, Row]]:
    for scope in group["scopeLogs"]:
        for log in scope["logRecords"]:
            yield (
                "otel_logs",
                {
                    "Timestamp": decimal(int(log.get("timeUnixNano", 0))),
                    "TraceId": log.get("traceId", ""),
                    "SpanId": log.get("spanId", ""),
                    "SeverityNumber": log.get("severityNumber", 0),
                    "Body": text(log.get("body", {})),
                    "LogAttributes": texts(log),
                    "EventName": log.get("eventName", ""),
                },
            )


def _points(group: Any) -> Iterator[tuple[str, Row]]:
    kinds = {
        "gauge": "gauge", "sum": "sum", "histogram": "histogram", "exponentialHistogram": "exponential_histogram",
    }  # fmt: skip
    for scope in group["scopeMetrics"]:
        for metric in scope["metrics"]:
            for kind, name in kinds.items():
                for point in metric.get(kind, {}).get("dataPoints", ()):
                    value = point.get("asDouble", point.get("asInt", 0))
                    counted = {"Count": int(point.get("count", 0)), "Sum": float(point.get("sum", 0))}
                    yield (
                        f"otel_metrics_{name}",
                        {
                            "MetricName": metric["name"],
                            "MetricUnit": metric.get("unit", ""),
                            "Attributes": texts(point),
                            "StartTimeUnix": int(point.get("startTimeUnixNano", 0)) // 10**9,
                            "TimeUnix": int(point["timeUnixNano"]) // 10**9,
                            **(counted if "istogram" in name else {"Value": number(value)}),
                        },
                    )


READ: Final = {"resourceSpans": _spans, "resourceMetrics": _points, "resourceLogs": _logs}


def texts(record: Any) -> dict[str, str]:
    """Return the attributes of a record as the exporter does: each a text, lists as JSON."""
    return {one["key"]: text(one["value"]) for one in record.get("attributes", ())}


def text(value: Any) -> str:
    if "arrayValue" in value:
        return json.dumps(
            [next(iter(one.values())) for one in value["arrayValue"].get("values", ())], separators=(",", ":")
        )
    (found,) = value.values() or ("",)
    return str(found).lower() if isinstance(found, bool) else str(found)


def number(value: Any) -> float | str:
    """Return a number as ClickHouse reads it in JSON: NaN and infinities are texts."""
    return {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}.get(str(value), float(value) if str(value) else 0.0)


def decimal(time_ns: int) -> str:
    return f"{time_ns // 10**9}.{time_ns % 10**9:09d}"
