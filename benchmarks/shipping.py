"""What sending costs: how fast a journal goes, what the sidecar takes, how much a busy thread slows down meanwhile.

    python benchmarks/shipping.py --spans 200000 --rounds 21

Sending goes to the real Collector that scripts/backends builds; its debug exporter counts and drops. The slow-down
compares, in turn, windows of a busy thread that hands 10,000 finished spans of 15 attributes a second to nobody, to the
journal (the sidecar sends it), and to the stock batch processors and OTLP exporters. It is the part of its throughput
that the thread loses. The busy thread is pinned to a core of its own, every other thread and process to the others:
what they take of it is the interpreter's lock.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measure import make_folder

os.environ.setdefault("OTEL_RL_DIR", make_folder())
os.environ["OTEL_RL_RUN_ID"] = "benchmark"

RATE = 10_000
WINDOW_S = 1.0
PAUSE_S = 1.5
"""Before each window, also where nothing waits: a core that has rested is faster for a while."""
ATTRIBUTES = 15
CONFIG = """
receivers: {{otlp: {{protocols: {{grpc: {{endpoint: "127.0.0.1:{grpc}"}}, http: {{endpoint: "127.0.0.1:{http}"}}}}}}}}
exporters: {{debug: {{verbosity: basic}}}}
service:
  pipelines:
    traces: {{receivers: [otlp], exporters: [debug]}}
    metrics: {{receivers: [otlp], exporters: [debug]}}
    logs: {{receivers: [otlp], exporters: [debug]}}
  telemetry: {{metrics: {{level: none}}, logs: {{level: error}}}}
"""
GRPC, HTTP = 24317, 24318


def main() -> None:
    """Run everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spans", type=int, default=200_000, help="of the journal that is sent")
    parser.add_argument("--rounds", type=int, default=21, help="windows of each kind")
    parser.add_argument("--ours", action="store_true", help="only the slow-down by otel_rl and the control")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    with server() as name:
        figures["server"] = name
        if not options.ours:
            figures["sending"] = sending(options.spans)
        figures["slow-down of a busy thread"] = slow_down(options.rounds, is_ours_only=options.ours)
    print(json.dumps(figures, indent=2))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


@contextmanager
def server() -> Iterator[str]:
    """Serve OTLP on both ports, on any core but the first."""
    found = collector()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(CONFIG.format(grpc=GRPC, http=HTTP))
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        if found is None:
            raise SystemExit("no Collector: run scripts/backends first")
        process = subprocess.Popen([found, "--config", str(config)], **quiet)
        os.sched_setaffinity(process.pid, others())
        time.sleep(5)
        try:
            yield Path(found).name
        finally:
            process.terminate()
            process.wait()


def collector() -> str | None:
    """Find the Collector that scripts/backends built."""
    folders = [os.environ.get("OTEL_RL_BACKENDS", "")]
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "otel_rl" / "backends"
    folders += [str(path) for path in cache.glob("*/bin")]
    return next((path for folder in folders if (path := shutil.which("otelcol", path=folder))), None)


def others() -> set[int]:
    """The cores that the training thread does not use."""
    return set(range(1, os.cpu_count() or 1)) or {0}


# --- sending ----------------------------------------------------------------------------------------------------------


def sending(spans: int) -> dict[str, Any]:
    """Send a journal by every protocol, each time from the begin."""
    directory = journal(spans)
    found = {}
    ways = [
        (*way, compression) for way in (("grpc", GRPC), ("http/protobuf", HTTP)) for compression in ("none", "gzip")
    ]
    for name, port, compression in ways:
        for path in directory.glob("*.shipped"):
            path.unlink()
        environ = {
            **os.environ,
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": name,
            "OTEL_EXPORTER_OTLP_COMPRESSION": compression,
        }
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "otel_rl", "ship", str(directory)],
            env=environ, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        seconds = time.perf_counter() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        found[f"{name} {compression}"] = {
            "spans_per_s": spans / seconds,
            "cpu_us_per_span": 1e6 * cpu / spans,
            "largest_rss_mib": after.ru_maxrss / 1024,
        }
    return found


def journal(spans: int) -> Path:
    """Write a journal of spans with 15 attributes."""
    from otel_rl.journal.identity import WriterIdentity
    from otel_rl.journal.otlp.encode import SpanEncoder
    from otel_rl.journal.write import Writer
    from otel_rl.trace.stage import Stage

    directory = Path(os.environ["OTEL_RL_DIR"]) / "sending"
    writer = Writer(directory, WriterIdentity.current("benchmark", 0), 1 << 32)
    encoder = SpanEncoder({"service.name": "benchmark", "rl.world_size": 1}, "0", stage=Stage)
    for begin in range(0, spans, 5000):
        for request in encoder.encode(stages(min(5000, spans - begin), begin)):
            writer.append(request.signal, request.payload, request.count, request.first_ns, request.last_ns)
    writer.close()
    return directory


def stages(count: int, seed: int) -> list[Any]:
    """Make finished stages, twenty to a trace."""
    from otel_rl.process.state import Trace
    from otel_rl.trace.stage import Stage

    made = []
    draw = random.Random(seed)
    for index in range(count):
        if index % 20 == 0:
            trace = Trace(draw.getrandbits(128), time.time_ns())
        stage = Stage("rl.train.forward", {f"rl.attribute.{key}": key * 1.5 for key in range(ATTRIBUTES)})
        stage.trace, stage.span_id, stage.parent_id = trace, draw.getrandbits(64), 1
        stage.began, stage.ended = index, index + 1000
        made.append(stage)
    return made


# --- slow-down --------------------------------------------------------------------------------------------------------


def slow_down(rounds: int, *, is_ours_only: bool) -> dict[str, Any]:
    """Say which part of its throughput a busy thread loses: each window between two that hand their spans to nobody."""
    import otel_rl
    from otel_rl.process.state import state

    os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{GRPC}"
    otel_rl.instrument(())
    time.sleep(3)  # the sidecar starts
    ours = stages(RATE, 1)
    # All windows run the same code: a loop that hands nothing over is 2 to 3 % faster by itself.
    nothing: tuple[list[Any], Callable[[Any], object]] = (ours, lambda span: None)
    kinds = {"nothing, the control": nothing, "otel_rl": (ours, state.add)}
    if not is_ours_only:
        theirs = stock_spans(RATE)
        kinds |= {
            "stock grpc": (theirs, stock("grpc", gzip=False).on_end),
            "stock http": (theirs, stock("http", gzip=False).on_end),
            "stock http gzip": (theirs, stock("http", gzip=True).on_end),
        }
    pin()
    ratios: dict[str, list[float]] = {name: [] for name in kinds}
    shares: dict[str, list[float]] = {name: [] for name in kinds}
    draw = random.Random(3)
    for _ in range(rounds):
        for name in draw.sample(list(kinds), len(kinds)):
            (before, _), (loaded, share), (behind, _) = [window(*kind) for kind in (nothing, kinds[name], nothing)]
            ratios[name].append(1 - 2 * loaded / (before + behind))
            shares[name].append(share)
    otel_rl.uninstrument()
    return {name: {**median(ratios[name]), "core_taken": statistics.median(shares[name])} for name in kinds}


def pin() -> None:
    """Give this thread the first core, and all others of this process and of the sidecar the others."""
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) == os.getpid() or b"otel-rl\0sidecar" in (process / "cmdline").read_bytes():
            for task in (process / "task").iterdir():
                os.sched_setaffinity(int(task.name), others())
    os.sched_setaffinity(0, {0})


def median(values: list[float]) -> dict[str, float]:
    """Give the median, its bootstrap 95 % interval and the quartiles: this machine's speed varies by as much."""
    draw = random.Random(11)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(4000))
    first, middle, third = statistics.quantiles(values, n=4)
    return {"low": medians[100], "median": middle, "high": medians[-100], "quartiles": [first, third]}


def window(spans: list[Any], emit: Callable[[Any], object]) -> tuple[float, float]:
    """Compute for a while, handing over spans ten times a second; before, wait until all has been sent.

    Returns:
        Operations per second, and the share of the core that the other threads of the process take.
    """
    time.sleep(PAUSE_S)
    began = now = time.perf_counter()
    others_began = time.process_time() - time.thread_time()
    due, done, index = began, 0, 0
    while now - began < WINDOW_S:
        total = 0
        for number in range(60):
            total += number * number
        done += 1
        now = time.perf_counter()
        if now >= due:
            due += 0.1
            for span in spans[index : index + RATE // 10]:
                emit(span)
            index = (index + RATE // 10) % len(spans)
    return done / (now - began), (time.process_time() - time.thread_time() - others_began) / (now - began)


def stock(protocol: str, *, gzip: bool) -> Any:
    """Make the stock batch processor with an exporter."""
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as Grpc
    from opentelemetry.exporter.otlp.proto.http import Compression
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as Http
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    exporter: Any = (
        Grpc(endpoint=f"http://127.0.0.1:{GRPC}", insecure=True)
        if protocol == "grpc"
        else Http(
            endpoint=f"http://127.0.0.1:{HTTP}/v1/traces",
            compression=Compression.Gzip if gzip else Compression.NoCompression,
        )
    )
    return BatchSpanProcessor(exporter, max_queue_size=200_000, max_export_batch_size=512, schedule_delay_millis=100)


def stock_spans(count: int) -> list[Any]:
    """Make the same spans as the SDK has them."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, TraceFlags

    resource_, scope = Resource.create({"service.name": "benchmark"}), InstrumentationScope("otel_rl", "0")
    return [
        ReadableSpan(
            stage.name,
            SpanContext(stage.trace.trace_id, stage.span_id, False, TraceFlags(1)),
            SpanContext(stage.trace.trace_id, 1, False, TraceFlags(1)),
            resource_,
            stage.attributes,
            instrumentation_scope=scope,
            start_time=stage.start_ns,
            end_time=stage.end_ns,
        )
        for stage in stages(count, 2)
    ]


if __name__ == "__main__":
    main()
