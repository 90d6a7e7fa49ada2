"""How long our calls take while the other side, or the disk, is in trouble: time inside stages, and time to exit.

    python benchmarks/drills.py --stages 20000

Each drill is a process of its own that opens and closes stages around a little work and measures each pair of calls: by
the wall clock, which is the definition, and by the CPU time of its thread, which other programs of a shared machine
disturb less. The server of the tests answers (or does not) in the process of the benchmark.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal

import grpc

sys.path.insert(0, str(Path(__file__).parents[1]))
from otel_rl.journal.identity import WriterIdentity
from otel_rl.sidecar import owner
from tests.sink import Answer, sink

ROOT = Path(__file__).parents[1]
PROGRAM = """
import os, sys, time, json
import otel_rl
if os.environ.get("ILLNESS"):
    import sick_disk
    sick_disk.segment.os = sick_disk.SickOs(os.environ["ILLNESS"], first=3)
otel_rl.instrument(())
taken, spent = [], []
clock, cpu = time.perf_counter_ns, time.thread_time_ns
with otel_rl.step(1):
    for number in range(int(sys.argv[1])):
        first = cpu()
        began = clock()
        stage = otel_rl.stage("tool", tokens=number)
        stage.__enter__()
        opened = clock()
        second = cpu()
        sum(range(4000))
        third = cpu()
        ended = clock()
        stage.__exit__(None, None, None)
        over = clock()
        fourth = cpu()
        taken.append(opened - began + over - ended)
        spent.append(second - first + fourth - third)
print(json.dumps([taken, spent]))
sys.stdout.flush()
"""
PERIOD_S = 0.4
"""How long something is well, or ill, or lives, in drills where that changes."""
RUN = "run"


def main() -> None:
    """Run every drill."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stages", type=int, default=20_000)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    figures = {}
    for name, drill in DRILLS.items():
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, ExitStack() as stack:
            try:
                environ = stack.enter_context(drill(Path(folder)))
            except PermissionError as error:
                print(f"{name:34s} left out: {error}", flush=True)
                continue
            figures[name] = run(options.stages, {"OTEL_RL_DIR": folder, **environ})
        print(f"{name:34s} " + "  ".join(f"{key} {value:9.3f}" for key, value in figures[name].items()), flush=True)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


def run(stages: int, environ: dict[str, str]) -> dict[str, float]:
    """Run one process and look at its figures: ms inside our calls for a stage, s from its last line to its end."""
    path = os.pathsep.join((str(ROOT), str(ROOT / "tests" / "programs")))
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(stages)],
        env={**os.environ, "PYTHONPATH": path, "OTEL_RL_RUN_ID": RUN, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    printed = time.perf_counter()
    assert process.wait() == 0
    exit_s = time.perf_counter() - printed
    kill_sidecar(Path(environ["OTEL_RL_DIR"]))
    (taken, spent) = ([value / 1e6 for value in values] for values in json.loads(line))
    cuts = statistics.quantiles(taken, n=1000)
    return {
        "p50_ms": cuts[499],
        "p99_ms": cuts[989],
        "p99.9_ms": cuts[998],
        "max_ms": max(taken),
        "cpu_p99_ms": statistics.quantiles(spent, n=1000)[989],
        "exit_s": exit_s,
    }


def kill_sidecar(root: Path) -> None:
    """End the sidecar of the run, if one lives."""
    identity = owner.living(root / RUN, WriterIdentity.current("benchmark", 0).boot_id)
    if identity is not None:
        with suppress(ProcessLookupError):
            os.kill(identity.pid, signal.SIGKILL)


@contextmanager
def again_and_again(work: Callable[[], None]) -> Iterator[None]:
    """Do something all the time, beside the block."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(PERIOD_S):
            work()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def journal_only(folder: Path) -> Iterator[dict[str, str]]:
    """Nothing is sent."""
    yield {}


def serving(answer: Answer | None = None, protocol: Literal["grpc", "http"] = "grpc", **environ: str) -> Drill:
    """A server that answers well, or always in one way; ``environ`` is the program's."""

    @contextmanager
    def drill(folder: Path) -> Iterator[dict[str, str]]:
        with sink(protocol) as server:
            if answer is not None:
                server.answer = lambda signal, payload: answer
            yield {**sent_to(server.endpoint, protocol), **environ}

    return drill


def sent_to(endpoint: str, protocol: str = "grpc") -> dict[str, str]:
    """Say where to send."""
    name = "grpc" if protocol == "grpc" else "http/protobuf"
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": name}


@contextmanager
def down(folder: Path) -> Iterator[dict[str, str]]:
    """Nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    yield sent_to(f"http://127.0.0.1:{port}")


@contextmanager
def deaf(folder: Path) -> Iterator[dict[str, str]]:
    """Somebody listens and never says a word."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield sent_to(f"http://127.0.0.1:{server.getsockname()[1]}")


@contextmanager
def restarting(folder: Path) -> Iterator[dict[str, str]]:
    """The server goes and comes back, on the same port."""
    with sink("grpc") as server:
        endpoint = server.endpoint

    def serve() -> None:
        with sink("grpc", int(endpoint.rpartition(":")[2])):
            time.sleep(PERIOD_S)

    with again_and_again(serve):
        yield sent_to(endpoint)


@contextmanager
def rejecting(folder: Path) -> Iterator[dict[str, str]]:
    """The server does not take half of what is in a request."""
    with sink("grpc") as server:
        server.answer = lambda signal, payload: Answer(rejected=max(len(payload) // 400, 1))
        yield sent_to(server.endpoint)


@contextmanager
def without_sidecar(folder: Path) -> Iterator[dict[str, str]]:
    """The process that sends is killed whenever it is there."""
    with sink("grpc") as server, again_and_again(lambda: kill_sidecar(folder)):
        yield sent_to(server.endpoint)


@contextmanager
def full(folder: Path) -> Iterator[dict[str, str]]:
    """The disk of the run has room for a part of it."""
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise PermissionError(done.stderr.strip())
    try:
        with sink("grpc") as server:
            yield sent_to(server.endpoint)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


Drill = Callable[[Path], AbstractContextManager[dict[str, str]]]
DRILLS: dict[str, Drill] = {
    "journal only": journal_only,
    "sent to a healthy server": serving(),
    "nobody listens": down,
    "connected, never answered": deaf,
    "always UNAVAILABLE": serving(Answer(code=grpc.StatusCode.UNAVAILABLE)),
    "always 429": serving(Answer(429), "http"),
    "always 503": serving(Answer(503), "http"),
    "always refused": serving(Answer(code=grpc.StatusCode.INVALID_ARGUMENT)),
    "half of a batch rejected": rejecting,
    "restarted again and again": restarting,
    "sidecar killed again and again": without_sidecar,
    "slow disk, 0.3 s a write": serving(ILLNESS="slow"),
    "full disk": full,
    "disk becomes read-only": serving(ILLNESS="read-only"),
    "disk hangs": serving(ILLNESS="hangs"),
    "no room for the journal": serving(OTEL_RL_DIR="/dev/full"),
}

if __name__ == "__main__":
    main()
