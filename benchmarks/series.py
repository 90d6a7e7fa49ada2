"""What a rank's metrics take in Prometheus: series, memory and disk, and how many there are after a restart.

    otel-rl run -- torchrun --nproc_per_node=2 -m otel_rl.demo.train --iters 1 --steps 24 --eval-every 8 --save-every 12
    python benchmarks/series.py otel_rl_runs/RUN --ranks 100

The last point of every series of rank 0 goes as that of each rank to the real Prometheus that scripts/backends builds,
40 times 15 s apart, and then again as another attempt's. Memory is resident; heap is what Go holds after a collection.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
import uuid
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from otel_rl import vocabulary as v
from otel_rl.journal.read import Run, open_run

ROOT = Path(__file__).parents[1]
APART_S = 15
TIMES = 40


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--ranks", type=int, default=100)
    options = parser.parse_args()
    last = last_points(open_run(options.run))
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
        ],
        env={**os.environ, "GOGC": "100"}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        _wait(url)
        show("empty", url, folder)
        for attempt in ("first attempt", "second attempt"):
            send(url, last, options.ranks, attempt)
            show(attempt, url, folder)
        if options.ranks > 1:
            series = query(url, f'count({{{_label(v.RANK)}="1", {_label(v.ATTEMPT_ID)}="second attempt"}})')
            print(f"one rank: {series:.0f} series")
    finally:
        store.terminate()
        store.wait()
        shutil.rmtree(folder)


def last_points(run: Run) -> ExportMetricsServiceRequest:
    """Give the last point of each series of rank 0."""
    found = ExportMetricsServiceRequest()
    resource: Any = None
    last: dict[tuple[str, str], tuple[Any, Any]] = {}
    for _, frame in run.frames("metrics"):
        for part in ExportMetricsServiceRequest.FromString(frame.payload).resource_metrics:
            told = {pair.key: pair.value for pair in part.resource.attributes}
            if v.RANK not in told or told[v.RANK].int_value:
                continue
            resource = part.resource
            for metric in (metric for scope in part.scope_metrics for metric in scope.metrics):
                for point in getattr(metric, metric.WhichOneof("data")).data_points:
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
            post = urllib.request.Request(f"{url}/api/v1/otlp/v1/metrics", request.SerializeToString())
            post.add_header("Content-Type", "application/x-protobuf")
            urllib.request.urlopen(post, timeout=60).close()


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
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    said = {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[:1] != "#")}
    disk = sum(file.stat().st_size for file in (*folder.glob("wal/*"), *folder.glob("chunks_head/*")) if file.is_file())
    print(
        f"{title:16s} {said['prometheus_tsdb_head_series']:10,.0f} series   "
        f"resident {said['process_resident_memory_bytes'] / 1e6:8.1f} MB   "
        f"heap {said['go_memstats_next_gc_bytes'] / 2e6:8.1f} MB   log and chunks {disk / 1e6:8.1f} MB"
    )


def query(url: str, expression: str) -> float:
    """Ask for one number."""
    asked = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"{url}/api/v1/query?{asked}", timeout=60) as answer:
        found = json.load(answer)["data"]["result"]
    return float(found[0]["value"][1]) if found else 0.0


def _label(key: str) -> str:
    return key.replace(".", "_")


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
