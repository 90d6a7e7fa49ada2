"""What encoding a span costs beside the stock encoder, and what it takes in the journal.

python benchmarks/encode.py
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from measure import keep, show, side_by_side
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, TraceFlags

from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.otlp import encode
from otel_rl.journal.otlp.encode import SpanEncoder
from otel_rl.journal.write import Writer
from otel_rl.process.state import Trace
from otel_rl.records import Value
from otel_rl.trace.stage import Stage

BATCH = 512
RESOURCE = {"service.name": "trl-trainer", "rl.rank": 0, "rl.run.id": "benchmark"}


def attributes(count: int, draw: random.Random) -> dict[str, Value]:
    """Make attributes as stages have them: a third strings, a third integers, a third floats."""
    kinds: list[Callable[[], Value]] = [
        lambda: f"value-{draw.randrange(99)}",
        lambda: draw.randrange(1 << 30),
        draw.random,
    ]
    return {f"rl.attribute.{index}": kinds[index % 3]() for index in range(count)}


def spans(count: int, each: int) -> tuple[list[Stage], list[ReadableSpan]]:
    """Make the same spans as our records and as the SDK's."""
    draw = random.Random(3)
    ours, theirs = [], []
    resource, scope = Resource(dict(RESOURCE)), InstrumentationScope("otel_rl", "0")
    for number in range(count):
        start = 1_790_000_000_000_000_000 + number * 1000
        values = attributes(each, draw)
        ids = draw.getrandbits(64), draw.getrandbits(64)
        if number % 20 == 0:
            trace = Trace(draw.getrandbits(128), start)
        stage = Stage("rl.train.forward", values)
        stage.trace, stage.span_id, stage.parent_id, stage.ended = trace, *ids, 900
        ours.append(stage)
        context = SpanContext(trace.trace_id, ids[0], is_remote=False, trace_flags=TraceFlags(1))
        parent = SpanContext(trace.trace_id, ids[1], is_remote=False, trace_flags=TraceFlags(1))
        theirs.append(
            ReadableSpan(
                "rl.train.forward", context, parent, resource, values, instrumentation_scope=scope,
                start_time=stage.start_ns, end_time=stage.end_ns,
            )
        )  # fmt: skip
    return ours, theirs


def journaled_bytes(each: int) -> float:
    """Write 10,000 spans in batches of a flusher's cycle and say what one takes on disk."""
    count, per_cycle = 10_000, 500
    ours, _ = spans(count, each)
    encoder = SpanEncoder(RESOURCE, "0", stage=Stage)
    with tempfile.TemporaryDirectory() as folder:
        writer = Writer(Path(folder), WriterIdentity.current("benchmark", 0), 1 << 30)
        for first in range(0, count, per_cycle):
            for request in encoder.encode(ours[first : first + per_cycle]):
                writer.append(request.signal, request.payload, request.count, request.first_ns, request.last_ns)
        writer.close()
        return sum(os.path.getsize(entry) for entry in Path(folder).iterdir()) / count


def repeat(way: Callable[[], object], count: int) -> None:
    """Encode batches until there are so many spans."""
    for _ in range(count // BATCH):
        way()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    tables = {}
    native = encode.native
    for each in (0, 5, 15):
        ours, theirs = spans(BATCH, each)
        ways = {"stock encoder": lambda theirs=theirs: encode_spans(theirs).SerializeToString()}
        ways["otel_rl, in C" if native else "otel_rl"] = partial(SpanEncoder(RESOURCE, "0", stage=Stage).encode, ours)
        if native:
            encode.native = None
            ways["otel_rl, in Python"] = partial(SpanEncoder(RESOURCE, "0", stage=Stage).encode, ours)
            encode.native = native
        tables[f"encode a span of {each} attributes"] = side_by_side(
            {name: partial(repeat, way) for name, way in ways.items()},
            BATCH * 4,
            rounds=15,
        )
    for title, figures in tables.items():
        show(title, figures)
    print("\njournal")
    for each in (0, 5, 15):
        print(f"  bytes of a span of {each:2d} attributes on disk: {journaled_bytes(each):6.1f}")
    keep(options.json, tables)


if __name__ == "__main__":
    main()
