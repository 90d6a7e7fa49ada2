"""OTLP requests for the tests of the shipped configurations, and a client that sends them by gRPC."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs
from opentelemetry.proto.metrics.v1.metrics_pb2 import Gauge, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from otel_rl.journal.frame import Signal
from otel_rl.sidecar.ship.client import SERVICES

HOUR_S = 3600


class Certificates(NamedTuple):
    """Files in PEM."""

    authority: Path
    certificate: Path
    key: Path


def resource(rank: int, **attributes: str) -> Resource:
    """A rank of a run."""
    return Resource(
        attributes=[
            *pairs({"service.name": "trl-trainer", "service.instance.id": f"instance-{rank}"}),
            *pairs({"rl.run.id": "run", "rl.attempt.id": "attempt", "rl.role": "trainer", "rl.system": "trl"}),
            KeyValue(key="rl.rank", value=AnyValue(int_value=rank)),
            *pairs(attributes),
        ]
    )


def pairs(attributes: dict[str, str]) -> list[KeyValue]:
    """Attributes with texts as values."""
    return [KeyValue(key=key, value=AnyValue(string_value=value)) for key, value in attributes.items()]


def texts(attributes: Any) -> dict[str, str]:
    """The attributes that have texts as values."""
    return {pair.key: pair.value.string_value for pair in attributes if pair.value.HasField("string_value")}


def span(trace_id: int, span_id: int, *, parent_id: int = 0, **attributes: str) -> Span:
    """A span that ended now; an underscore in a name stands for a dot."""
    now = time.time_ns()
    return Span(
        trace_id=trace_id.to_bytes(16, "big"),
        span_id=span_id.to_bytes(8, "big"),
        parent_span_id=parent_id.to_bytes(8, "big") if parent_id else b"",
        name="rl.loop",
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=now - 1_000_000_000,
        end_time_unix_nano=now,
        attributes=pairs({key.replace("_", "."): value for key, value in attributes.items()}),
    )


def traces(*spans: Span, rank: int = 0) -> ExportTraceServiceRequest:
    """A request of one rank."""
    return ExportTraceServiceRequest(
        resource_spans=[ResourceSpans(resource=resource(rank), scope_spans=[ScopeSpans(spans=spans)])]
    )


def metrics(name: str, *points: tuple[int, float, float]) -> ExportMetricsServiceRequest:
    """A request with points of ranks: rank, age in seconds, value."""
    now = time.time()
    return ExportMetricsServiceRequest(
        resource_metrics=[
            ResourceMetrics(
                resource=resource(rank),
                scope_metrics=[
                    ScopeMetrics(
                        metrics=[
                            Metric(
                                name=name,
                                unit="s",
                                gauge=Gauge(
                                    data_points=[
                                        NumberDataPoint(
                                            time_unix_nano=round((now - age_s) * 1e9),
                                            as_double=value,
                                        )
                                    ]
                                ),
                            )
                        ]
                    )
                ],
            )
            for rank, age_s, value in points
        ]
    )


def logs(attributes: dict[str, str]) -> ExportLogsServiceRequest:
    """A request with one record."""
    record = LogRecord(
        time_unix_nano=time.time_ns(),
        event_name="rl.stage.open",
        attributes=pairs(attributes),
    )
    return ExportLogsServiceRequest(
        resource_logs=[ResourceLogs(resource=resource(0), scope_logs=[ScopeLogs(log_records=[record])])]
    )


def failed(message: str) -> Status:
    """The status of a span that an exception ended."""
    return Status(code=Status.STATUS_CODE_ERROR, message=message)


def send(
    address: str,
    signal: Signal,
    request: Any,
    *,
    trusted: Path | None = None,
    shown: Certificates | None = None,
    token: str = "",
) -> str:
    """Send a request by gRPC.

    Args:
        address: ``host:port``.
        signal: what the request holds.
        request: a request message of the signal.
        trusted: certificate authority of the server; without it TLS is not used.
        shown: certificate of the client.
        token: bearer token.

    Returns:
        The name of the answer's status code, ``OK`` where it was taken.
    """
    credentials = trusted and grpc.ssl_channel_credentials(
        trusted.read_bytes(),
        shown and shown.key.read_bytes(),
        shown and shown.certificate.read_bytes(),
    )
    channel = grpc.secure_channel(address, credentials) if credentials else grpc.insecure_channel(address)
    headers = [("authorization", f"Bearer {token}")] if token else []
    with channel:
        try:
            channel.unary_unary(f"/{SERVICES[signal]}/Export")(request.SerializeToString(), metadata=headers)
        except grpc.RpcError as error:
            return str(error.code().name)
    return "OK"
