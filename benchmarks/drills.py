"""How long our calls take while the other side, or the disk, is in trouble: time inside stages, and time to exit.

    python benchmarks/drills.py --stages 20000

Each drill is a process of its own that opens and closes stages around a little work and measures each pair of calls.
The server of the tests answers (or does not) in the process of the benchmark.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.sink import Answer, sink

PROGRAM = """
import sys, time, json
import otel_rl
otel_rl.instrument(())
taken = []
clock = time.perf_counter_ns
with otel_rl.step(1):
    for number in range(int(sys.argv[1])):
        began = clock()
        stage = otel_rl.stage("tool", tokens=number)
        stage.__enter__()
        opened = clock()
        sum(range(4000))
        ended = clock()
        stage.__exit__(None, None, None)
        taken.append(opened - began + clock() - ended)
print(json.dumps(taken))
sys.stdout.flush()
"""


def main() -> None:
    """Run every drill."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stages", type=int, default=20_000)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    figures = {}
    for name, drill in DRILLS.items():
        with drill() as environ:
            figures[name] = run(options.stages, environ)
        print(f"{name:34s} " + "  ".join(f"{key} {value:9.3f}" for key, value in figures[name].items()), flush=True)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


def run(stages: int, environ: dict[str, str]) -> dict[str, float]:
    """Run one process and look at its figures: ms inside our calls for a stage, s from its last line to its end."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        variables = {**os.environ, "OTEL_RL_DIR": folder, "OTEL_RL_RUN_ID": "run", **environ}
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(stages)],
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        printed = time.perf_counter()
        assert process.wait() == 0
        exit_s = time.perf_counter() - printed
        subprocess.run(["pkill", "-f", f"otel_rl.sidecar {folder}"], check=False)
    taken = [value / 1e6 for value in json.loads(line)]
    cuts = statistics.quantiles(taken, n=1000)
    return {"p50_ms": cuts[499], "p99_ms": cuts[989], "p99.9_ms": cuts[998], "max_ms": max(taken), "exit_s": exit_s}


@contextmanager
def journal_only() -> Iterator[dict[str, str]]:
    """Nothing is sent."""
    yield {}


@contextmanager
def serving(answer: Answer | None = None) -> Iterator[dict[str, str]]:
    """A server that answers well, or always in one way."""
    with sink("grpc") as server:
        if answer is not None:
            server.answer = lambda signal, payload: answer
        yield {"OTEL_EXPORTER_OTLP_ENDPOINT": server.endpoint}


@contextmanager
def down() -> Iterator[dict[str, str]]:
    """Nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    yield {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}


@contextmanager
def deaf() -> Iterator[dict[str, str]]:
    """Somebody listens and never says a word."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.getsockname()[1]}"}


@contextmanager
def full_disk() -> Iterator[dict[str, str]]:
    """The run's directory is a device without room."""
    yield {"OTEL_RL_DIR": "/dev/full"}


DRILLS: dict[str, Any] = {
    "journal only": journal_only,
    "sent to a healthy server": serving,
    "nobody listens": down,
    "connected, never answered": deaf,
    "always UNAVAILABLE": lambda: serving(Answer(code=grpc.StatusCode.UNAVAILABLE)),
    "always refused": lambda: serving(Answer(code=grpc.StatusCode.INVALID_ARGUMENT)),
    "no room for the journal": full_disk,
}

if __name__ == "__main__":
    main()
