"""What a rank's metrics take in Prometheus: series, memory and disk, and how many there are after a restart.

    otel-rl run -- torchrun --nproc_per_node=2 -m otel_rl.demo.train --iters 1 --steps 24 --eval-every 8 --save-every 12
    python benchmarks/series.py otel_rl_runs/RUN --ranks 100

First rank 0's series and samples are counted, and its metrics go to the real Prometheus that scripts/backends builds as
they are: how many bytes a sample takes in a block. Then the last point of every series goes to another Prometheus as
that of each rank, 40 times 15 s apart, and again as another attempt's. Memory is resident; heap is what Go holds after
a collection.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.request
import uuid
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from otel_rl import vocabulary as v
from otel_rl.analysis.buckets import BOUNDS
from otel_rl.analysis.histogram import Histogram
from otel_rl.journal.frame import Frame
from otel_rl.journal.read import Journal, Run, open_run

ROOT = Path(__file__).parents[1]
APART_S = 15
TIMES = 40


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--ranks", type=int, default=100)
    options = parser.parse_args()
    show_quantiles()
    run = open_run(options.run)
    count(run)
    with prometheus() as (url, folder):
        for _, frame in frames(run):
            post(url, frame.payload)
        show_block(url, folder)
    with prometheus() as (url, folder):
        show("empty", url, folder)
        last = last_points(run)
        for attempt in ("first attempt", "second attempt"):
            send(url, last, options.ranks, attempt)
            show(attempt, url, folder)


def show_quantiles() -> None:
    """Print how far quantiles of 200 log-normal distributions of 1,000 values are from the truth."""
    for title, bounds in (("exponential", BOUNDS), ("classic", v.METRICS[v.TTFT].boundaries)):
        draw, errors = random.Random(1), {0.5: [], 0.99: []}
        for _ in range(200):
            place, width = draw.uniform(-7, 2), draw.choice((0.02, 0.1, 0.5, 1.0))
            values = sorted(draw.lognormvariate(place, width) for _ in range(1000))
            places = Counter(bisect_left(bounds, value) for value in values)
            counts = [places[number] for number in range(len(bounds) + 1)]
            for share, some in errors.items():
                found = Histogram(bounds, counts, 0, bounds[-1]).quantile(share)  # Prometheus knows no least value
                some.append(abs(found / values[round(share * 999)] - 1))
        for share, some in errors.items():
            print(f"error of p{share * 100:g}, {title}: {statistics.median(some):.1%}, at most {max(some):.1%}")


def frames(run: Run) -> Iterator[tuple[Journal, Frame]]:
    """Return the metrics of rank 0."""
    for journal, frame in run.frames("metrics"):
        if journal.identity.writer.startswith("trainer-0-"):
            yield journal, frame


def count(run: Run) -> None:
    """Print how many series rank 0 has, and how many samples it writes; a classic histogram is a series a bucket."""
    series: dict[tuple[str, str], int] = {}
    samples, steps = 0, []
    for _, frame in frames(run):
        for metric, point in points(frame.payload):
            number = len(point.bucket_counts) + 2 if metric.WhichOneof("data") == "histogram" else 1
            series[metric.name, str(point.attributes)] = number
            samples += number
            if metric.name == v.STEP_TIME:
                steps.append(point.as_double)
    print(
        f"rank 0: {len(steps)} steps of {sum(steps) / len(steps):.2f} s, {sum(series.values()):,} series, "
        f"{samples / len(steps):,.0f} samples a step, {samples / sum(steps):,.0f} a second"
    )


@contextmanager
def prometheus() -> Iterator[tuple[str, Path]]:
    """Run one: its address and its data."""
    programs = subprocess.run([ROOT / "scripts/backends", "where"], capture_output=True, text=True, check=True)
    folder = Path(tempfile.mkdtemp(prefix="otel_rl_benchmark_"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    store = subprocess.Popen(
        [
            f"{programs.stdout.strip()}/prometheus", f"--config.file={ROOT / 'collector/prometheus.yaml'}",
            f"--storage.tsdb.path={folder}", f"--web.listen-address={url.removeprefix('http://')}",
            "--web.enable-otlp-receiver", "--enable-feature=exemplar-storage,native-histograms",
            "--web.enable-admin-api",
        ],
        env={**os.environ, "GOGC": "100"}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        _wait(url)
        yield url, folder
    finally:
        store.terminate()
        store.wait()
        shutil.rmtree(folder)


def last_points(run: Run) -> ExportMetricsServiceRequest:
    """Return the last point of each series of rank 0."""
    found = ExportMetricsServiceRequest()
    resource: Any = None
    last: dict[tuple[str, str], tuple[Any, Any]] = {}
    for _, frame in frames(run):
        resource = ExportMetricsServiceRequest.FromString(frame.payload).resource_metrics[0].resource
        for metric, point in points(frame.payload):
            last[metric.name, str(point.attributes)] = metric, point
    group = found.resource_metrics.add(resource=resource)
    scope = group.scope_metrics.add()
    for metric, point in last.values():
        kind = metric.WhichOneof("data")
        one = scope.metrics.add(name=metric.name, unit=metric.unit)
        for field, value in getattr(metric, kind).ListFields():
            if field.name != "data_points":
                setattr(getattr(one, kind), field.name, value)
        getattr(one, kind).data_points.append(point)
    return found


def points(payload: bytes) -> Iterator[tuple[Any, Any]]:
    """Return every point of a request with its metric."""
    for part in ExportMetricsServiceRequest.FromString(payload).resource_metrics:
        for metric in (metric for scope in part.scope_metrics for metric in scope.metrics):
            for point in getattr(metric, metric.WhichOneof("data")).data_points:
                yield metric, point


def post(url: str, payload: bytes) -> None:
    """Send a request."""
    asked = urllib.request.Request(f"{url}/api/v1/otlp/v1/metrics", payload)
    asked.add_header("Content-Type", "application/x-protobuf")
    urllib.request.urlopen(asked, timeout=60).close()


def send(url: str, request: ExportMetricsServiceRequest, ranks: int, attempt: str) -> None:
    """Send the points as those of ranks of an attempt, until now; what is counted grows meanwhile."""
    (group,) = request.resource_metrics
    told = {pair.key: pair.value for pair in group.resource.attributes}
    now = int(time.time())
    for turn in range(TIMES):
        for metric in group.scope_metrics[0].metrics:
            for point in getattr(metric, metric.WhichOneof("data")).data_points:
                point.time_unix_nano = (now - APART_S * (TIMES - 1 - turn)) * 10**9
                _grow(metric.WhichOneof("data"), point, turn)
        for rank in range(ranks):
            instance = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{attempt} {rank}"))
            told[v.RANK].CopyFrom(AnyValue(int_value=rank))
            told[v.ATTEMPT_ID].CopyFrom(AnyValue(string_value=attempt))
            told[v.SERVICE_INSTANCE_ID].CopyFrom(AnyValue(string_value=instance))
            post(url, request.SerializeToString())


def _grow(kind: str, point: Any, turn: int) -> None:
    """Change what is counted as a run of equal steps does."""
    if kind == "sum":
        point.as_double = float(turn)
    elif kind != "gauge" and point.count:
        buckets = point.positive.bucket_counts if kind == "exponential_histogram" else point.bucket_counts
        for place, count in enumerate(buckets):
            buckets[place] = count + (count + 23) // 24  # about as much as in one of 24 steps
        point.count = sum(buckets) + (point.zero_count if kind == "exponential_histogram" else 0)
        point.sum *= 1 + 1 / 24


def show(title: str, url: str, folder: Path) -> None:
    """Print what Prometheus says of itself."""
    said = numbers(url)
    disk = sum(file.stat().st_size for file in (*folder.glob("wal/*"), *folder.glob("chunks_head/*")) if file.is_file())
    print(
        f"{title:16s} {said['prometheus_tsdb_head_series']:10,.0f} series   "
        f"resident {said['process_resident_memory_bytes'] / 1e6:8.1f} MB   "
        f"heap {said['go_memstats_next_gc_bytes'] / 2e6:8.1f} MB   log and chunks {disk / 1e6:8.1f} MB"
    )


def show_block(url: str, folder: Path) -> None:
    """Print what the samples take in a block."""
    asked = urllib.request.Request(f"{url}/api/v1/admin/tsdb/snapshot", method="POST")
    urllib.request.urlopen(asked, timeout=60).close()
    chunks = sum(file.stat().st_size for file in folder.glob("snapshots/*/*/chunks/*"))
    index = sum(file.stat().st_size for file in folder.glob("snapshots/*/*/index"))
    counter = "prometheus_tsdb_head_samples_appended_total"
    samples = sum(value for name, value in numbers(url).items() if name.startswith(counter))
    print(f"a block: {samples:,.0f} samples of {chunks / samples:.2f} bytes, and an index of {index / 1e3:.0f} kB")


def numbers(url: str) -> dict[str, float]:
    """Read what Prometheus says of itself."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[:1] != "#")}


def _wait(url: str) -> None:
    for _ in range(600):
        try:
            urllib.request.urlopen(f"{url}/-/ready", timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("Prometheus did not start")


if __name__ == "__main__":
    main()
