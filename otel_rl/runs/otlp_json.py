"""Journaled requests as OTLP/JSON: one object a line, as the Collector's file exporter writes."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any, Final

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_rl.journal.frame import Signal
from otel_rl.journal.read import Run

REQUESTS: Final[dict[Signal, Callable[[], Message]]] = {
    "traces": ExportTraceServiceRequest,
    "metrics": ExportMetricsServiceRequest,
    "logs": ExportLogsServiceRequest,
}
IDS: Final = frozenset({"traceId", "spanId", "parentSpanId"})


def lines(run: Run) -> Iterator[tuple[str, int]]:
    """Yield every journaled request of a run as a line of OTLP/JSON, and its bytes in the journal.

    A request that is no OTLP is left out.
    """
    for signal in REQUESTS:
        for _, frame in run.frames(signal):
            line = to_json(signal, frame.payload)
            if line:
                yield line, len(frame.payload)


def to_json(signal: Signal, payload: bytes) -> str:
    """Translate one OTLP request from protobuf into OTLP/JSON; empty if it cannot be parsed.

    In OTLP (specification, section "JSON Protobuf Encoding") ids are hexadecimal and enums are numbers; else it is
    protobuf's own JSON. The text is ASCII, so nothing in it controls a terminal.
    """
    request = REQUESTS[signal]()
    try:
        request.ParseFromString(payload)
    except DecodeError:
        return ""
    document = MessageToDict(request, use_integers_for_enums=True)
    _ids_to_hex(document)
    return json.dumps(document, allow_nan=False, separators=(",", ":"))


def _ids_to_hex(node: Any) -> None:
    """Rewrite ids in place; an attribute's key is a value here, so it is not taken for an id."""
    if isinstance(node, list):
        for item in node:
            _ids_to_hex(item)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key in IDS:
                node[key] = base64.b64decode(value).hex()
            else:
                _ids_to_hex(value)
