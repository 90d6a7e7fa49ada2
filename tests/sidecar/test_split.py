"""Cutting requests: every record once, in order, with all that is around it."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from otel_rl.journal.frame import Signal
from otel_rl.journal.otlp.encode import SpanEncoder
from otel_rl.records import Distribution, Log, MetricPoints, Number
from otel_rl.sidecar.ship.split import MESSAGES, build, halves, records
from tests.made_runs import FakeSpan

NS = 1_700_000_000_000_000_000


def payload(signal: Signal) -> tuple[bytes, int]:
    """Make a request of two resources, and say how many records it has."""
    joined, count = b"", 0
    for rank in (0, 1):
        encoder = SpanEncoder({"rl.rank": rank}, "1.0")
        if signal == "traces":
            requests = encoder.encode([FakeSpan(f"s{n}", 7, 10 * rank + n, 1, NS, NS + n) for n in range(1, 6)])
        elif signal == "logs":
            requests = encoder.encode_logs([Log("event", NS + n, {"n": n}) for n in range(5)])
        else:
            numbers = [Number(NS + n, n, {"of": "x"}) for n in range(4)]
            folded = [Distribution(NS + n, [1, 2], 3.0, 0.5, 2.0) for n in range(3)]
            requests = encoder.encode_metrics(
                [
                    MetricPoints("a", "gauge", "s", "a gauge", numbers),
                    MetricPoints("b", "counter", "1", "a counter", numbers, NS),
                    MetricPoints("c", "histogram", "s", "a histogram", folded, NS, [1.0]),
                ]
            )
        for request in requests:
            joined, count = joined + request.payload, count + request.count
    return joined, count


def contents(signal: Signal, data: bytes) -> list[tuple[bytes, ...]]:
    """The records with what is around them, as bytes that can be compared."""
    return [
        (
            record[0].resource.SerializeToString(deterministic=True),
            record[1].scope.SerializeToString(deterministic=True),
            record[2].name.encode() if signal == "metrics" else b"",
            record[-1].SerializeToString(deterministic=True),
        )
        for record in records(signal, data)
    ]


@pytest.mark.parametrize("signal", ["traces", "metrics", "logs"])
def test_every_record_is_in_one_piece(signal: Signal) -> None:
    """Down to single ones; spans, points and log records are counted as the journal counts them."""
    data, count = payload(signal)
    assert count == len(records(signal, data))
    waiting = [(data, count)]
    pieces = []
    while waiting:
        piece, number = waiting.pop(0)
        if number == 1:
            pieces.append(piece)
        else:
            parts = list(halves(signal, piece))
            assert number == sum(part for _, part in parts)
            waiting[:0] = parts
    assert count == len(pieces)
    assert contents(signal, data) == [content for piece in pieces for content in contents(signal, piece)]


@pytest.mark.parametrize("signal", ["traces", "metrics", "logs"])
def test_what_is_built_again_is_the_same(signal: Signal) -> None:
    """Nothing around the records is lost: units, temporality, monotony, schemas."""
    data, _ = payload(signal)
    message = MESSAGES[signal].FromString(data)
    for outer in next(iter(message.ListFields()))[1]:
        outer.schema_url = "https://schema/1"
        for inner in outer.ListFields()[1][1]:
            inner.schema_url = "https://schema/2"
            if signal == "metrics":
                inner.metrics[0].metadata.add(key="k").value.string_value = "v"
    data = message.SerializeToString()
    assert message == MESSAGES[signal].FromString(build(signal, records(signal, data)))


def test_what_has_no_records() -> None:
    """A request of nothing has no halves; a metric without points neither."""
    message = ExportMetricsServiceRequest()
    message.resource_metrics.add().scope_metrics.add().metrics.add(name="empty")
    assert [] == list(halves("metrics", b"")) == list(halves("metrics", message.SerializeToString()))
    with pytest.raises(DecodeError):
        list(halves("traces", b"\xff\xff"))
