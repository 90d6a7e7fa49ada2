"""OTLP/JSON against the rules of the protocol and against what was journaled."""

from __future__ import annotations

import base64
import json
import math
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_rl import vocabulary as v
from otel_rl.journal.columns.decode import decode_spans
from otel_rl.journal.otlp.encode import SpanEncoder
from otel_rl.journal.read import open_run
from otel_rl.records import MetricPoints, Number, SpanLink
from otel_rl.runs.made_spans import closed_requests
from otel_rl.runs.otlp_json import lines, to_json
from tests.made_runs import FakeSpan, Plan, write_run

REQUESTS = {
    "traces": ExportTraceServiceRequest,
    "metrics": ExportMetricsServiceRequest,
    "logs": ExportLogsServiceRequest,
}


def ids_to_base64(node: Any) -> Any:
    """Turn OTLP's hexadecimal ids into what protobuf's JSON parser reads."""
    if isinstance(node, list):
        return [ids_to_base64(item) for item in node]
    if not isinstance(node, dict):
        return node
    ids = ("traceId", "spanId", "parentSpanId")
    return {
        key: base64.b64encode(bytes.fromhex(value)).decode() if key in ids else ids_to_base64(value)
        for key, value in node.items()
    }


@pytest.mark.parametrize("signal", ["traces", "metrics", "logs"])
def test_every_request_comes_back_as_it_was_journaled(tmp_path: Path, signal: Any) -> None:
    """Parsed again, the JSON is the journaled message."""
    run = open_run(write_run(tmp_path, Plan(killed_in=v.BACKWARD, nan_loss_step=2)))
    for _, frame in run.frames(signal):
        document = json.loads(to_json(signal, frame.payload))
        found = ParseDict(ids_to_base64(document), REQUESTS[signal]())
        assert frame.payload == found.SerializeToString()


def test_one_line_is_one_request(tmp_path: Path) -> None:
    """Every journaled frame is a line with one of three keys."""
    run = open_run(write_run(tmp_path, Plan(killed_in=v.BACKWARD)))
    keys = [list(json.loads(line)) for line, _ in lines(run)]
    frames = [len(list(run.frames(signal))) for signal in ("traces", "metrics", "logs")]
    assert [["resourceSpans"]] * frames[0] + [["resourceMetrics"]] * frames[1] + [["resourceLogs"]] * frames[2] == keys


def test_ids_are_hexadecimal_enums_numbers_and_times_strings() -> None:
    """The points in which OTLP differs from protobuf's own JSON, and 64-bit integers."""
    span = FakeSpan("a", 1, 2, 3, 4, 5, {"traceId": "kept"}, links=[SpanLink(6, 7)], status=(2, "bad"))
    document = json.loads(to_json("traces", SpanEncoder({}).encode([span])[0].payload))
    found = document["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    expected = {"traceId": f"{1:032x}", "spanId": f"{2:016x}", "parentSpanId": f"{3:016x}", "startTimeUnixNano": "4"}
    assert expected == {key: found[key] for key in expected}
    assert (f"{6:032x}", f"{7:016x}") == (found["links"][0]["traceId"], found["links"][0]["spanId"])
    assert ({"message": "bad", "code": 2}, 1) == (found["status"], found["kind"])
    assert [{"key": "traceId", "value": {"stringValue": "kept"}}] == found["attributes"]


def test_numbers_that_json_cannot_say_are_strings() -> None:
    """NaN and infinities survive; integers stay integers."""
    points = [Number(1, value) for value in (math.nan, math.inf, -math.inf, 0.5, 7)]
    request = SpanEncoder({}).encode_metrics([MetricPoints("m", "gauge", "1", "", points)])[0]
    document = json.loads(to_json("metrics", request.payload))
    found = document["resourceMetrics"][0]["scopeMetrics"][0]["metrics"][0]["gauge"]["dataPoints"]
    assert ["NaN", "Infinity", "-Infinity", 0.5] == [point["asDouble"] for point in found[:4]]
    assert "7" == found[4]["asInt"]


def test_closed_spans_are_a_request_of_their_own(tmp_path: Path) -> None:
    """One group for each writer with its resource; parsed again, each span says what the reader made of it."""
    run = open_run(write_run(tmp_path, Plan(killed_in=v.BACKWARD)))
    found = [stage.closed() for stage in run.open_stages()]
    found[0] = found[0]._replace(attributes={"long": "x" * 3000, "list": (1, 2), v.TRUNCATED: True})
    request = ExportTraceServiceRequest()
    for one in closed_requests(found):
        line = to_json("traces", one.payload)
        request.MergeFrom(ParseDict(ids_to_base64(json.loads(line)), ExportTraceServiceRequest()))
    for journal in run.journals:  # read back by the journal's own decoder, which gives every writer's spans
        spans = list(decode_spans([request.SerializeToString()]).views(journal))
        assert sorted((*span[:8], span.resource) for span in found) == sorted((*s[:8], s.resource) for s in spans)
    scopes = [group.scope_spans[0].scope for group in request.resource_spans]
    assert [("otel_rl", "")] * 2 == [(scope.name, scope.version) for scope in scopes]


def test_a_closed_span_with_an_impossible_begin(tmp_path: Path) -> None:
    """A crafted journal stops no export."""
    stage = open_run(write_run(tmp_path, Plan(killed_in=v.BACKWARD))).open_stages()[0]
    (request,) = closed_requests([stage.closed()._replace(start_ns=-5)])
    document = json.loads(to_json("traces", request.payload))
    (span,) = document["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert (None, str(stage.journal.last_ns)) == (span.get("startTimeUnixNano"), span["endTimeUnixNano"])


def test_what_is_no_request_is_left_out() -> None:
    """A payload that is no OTLP gives no line."""
    assert "" == to_json("traces", b"\xff\xff\xff")


def test_a_line_is_ascii() -> None:
    """So nothing in it orders a terminal about."""
    line = to_json("traces", SpanEncoder({}).encode([FakeSpan("a\x9bb\x7f\u202e", 1, 2, 0, 3, 4)])[0].payload)
    assert (True, False) == (line.isascii(), "\x7f" in line)
