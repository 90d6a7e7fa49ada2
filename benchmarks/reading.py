"""What a report costs, beside another checkout's on the same journal and beside protobuf's bare parse of its spans.

Cold, and warm: with what the report before has kept beside the run, as it is and after one step more of each rank. All
have their bytecode, as an installed package has it.

git worktree add --detach /tmp/before ddafbfb8
python benchmarks/reading.py --against /tmp/before
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_rl import vocabulary as v
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.otlp.encode import SpanEncoder
from otel_rl.journal.read import open_run
from otel_rl.journal.write import Writer
from otel_rl.report.cache import NAME

BEGIN_NS = 1_795_000_000_000_000_000
BYTECODE = tempfile.TemporaryDirectory(prefix="otel_rl_bytecode_")
ATTEMPT = "ab12cd34ef56ab78"
FIXED, BLOCK = 8, 11
"""Spans of a step, and of a micro-batch in it."""


class Finished(NamedTuple):
    """A span as the encoder takes it."""

    name: str
    span_id: int
    parent_id: int
    trace_id: int
    start_ns: int
    end_ns: int
    attributes: dict[str, object]
    kind: int = 1
    status: None = None
    events: None = None
    links: None = None


class Step:
    """Makes the spans of one step of one rank: a rollout, a reward, and an update of micro-batches with collectives."""

    def __init__(self, rank: int, number: int, is_slow: bool) -> None:
        self.draw = random.Random(number)  # as all ranks draw it
        self.rank, self.number, self.slow = rank, number, 1.35 if is_slow else 1.0
        self.ids = random.Random(rank << 32 | number)
        self.trace = random.Random(number).getrandbits(128)
        self.spans: list[Finished] = []
        self.sequence = number * 10_000

    def span(self, name: str, begin: int, end: int, parent: int, **attributes: object) -> int:
        """Add a span; returns its id."""
        own = self.ids.getrandbits(63) | 1
        self.spans.append(Finished(name, own, parent, self.trace, begin, end, attributes))
        return own

    def make(self, micro: int) -> list[Finished]:
        """Return all spans, the container last."""
        container = self.ids.getrandbits(63) | 1
        begin = now = BEGIN_NS + self.number * 2_000_000_000
        end = now + self.draw.randrange(200_000_000, 300_000_000)
        self.span(v.SAMPLE, now, end, container, **{v.SAMPLE_BATCH_SIZE: 8, v.TOKENS_RESPONSE: 2000})
        self.span(v.REWARD, end, end + 9_000_000, container)
        now = end + 9_000_000
        train = self.ids.getrandbits(63) | 1
        train_begin = now
        for _ in range(micro):
            now = self.micro_batch(train, now)
        self.span(v.OPTIMIZER, now, now + 5_000_000, train)
        now += 5_000_000
        self.spans.append(Finished(v.TRAIN, train, container, self.trace, train_begin, now, {v.TOKENS: 4000}))
        attributes: dict[str, object] = {v.ITERATION: self.number, v.RSS_END: 1 << 30, v.RSS_PEAK: 1 << 30}
        self.spans.append(
            Finished(f"{v.CONTAINER}{self.rank}", container, 0, self.trace, begin, now + 1_000_000, attributes)
        )
        return self.spans

    def micro_batch(self, train: int, now: int) -> int:
        """Add a forward and a backward with their collectives; returns when the ranks leave the last of them."""
        for name, calls in ((v.FORWARD, 4), (v.BACKWARD, 5)):
            stage, begin, comm_ns = self.ids.getrandbits(63) | 1, now, 0
            for _ in range(calls):
                work = self.draw.randrange(1_000_000, 2_000_000)
                arrived, left = now + int(work * self.slow), now + int(work * 1.35) + 300_000
                self.sequence += 1
                attributes = {
                    v.COMM_OPERATION: "all_reduce", v.COMM_GROUP: "0", v.COMM_GROUP_SIZE: 2,
                    v.COMM_SEQUENCE: self.sequence, v.COMM_BYTES: 1 << 20,
                }  # fmt: skip
                self.span(v.COMM, arrived, left, stage, **attributes)
                comm_ns += left - arrived
                now = left
            numbers: dict[str, object] = {v.COMM_COUNT: calls, v.COMM_TIME: comm_ns / 1e9, v.TOKENS: 500}
            numbers |= {v.RSS_START: 1 << 30, v.RSS_END: (1 << 30) + 4096}
            self.spans.append(Finished(name, stage, train, self.trace, begin, now, numbers))
        return now


def write(folder: Path, ranks: int, steps: int, spans: int) -> tuple[int, Callable[[], None]]:
    """Write a run with one slow rank; returns how many spans it has, and what appends one step more of each rank."""
    micro, count = max(1, (spans - FIXED) // BLOCK), 0
    files: list[tuple[Writer, SpanEncoder]] = []

    def append(rank: int, number: int) -> int:
        made = Step(rank, number, rank == ranks - 1).make(micro)
        writer, encoder = files[rank]
        for request in encoder.encode(made):
            writer.append(request.signal, request.payload, request.count, request.first_ns, request.last_ns)
        return len(made)

    def append_step() -> None:
        for rank in range(ranks):
            append(rank, steps + 1)

    for rank in range(ranks):
        names = {
            v.SERVICE_NAME: "benchmark", v.SYSTEM: "trl", v.RUN_ID: folder.name, v.ATTEMPT_ID: ATTEMPT,
            v.ROLE: "trainer", v.RANK: rank, v.WORLD_SIZE: ranks, v.HOST_NAME: "host",
        }  # fmt: skip
        writer = Writer(folder, WriterIdentity(f"trainer-{rank}-{rank}-b"), 1 << 40)
        files.append((writer, SpanEncoder(names)))
        count += sum(append(rank, number) for number in range(1, steps + 1))
    return count, append_step


def cpu_s(command: list[str], root: Path) -> tuple[float, float]:
    """Run a command; returns its CPU time in s, and its largest memory in MiB."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environ |= {"PYTHONPATH": str(root), "PYTHONPYCACHEPREFIX": BYTECODE.name}
    subprocess.run(command, env=environ, cwd=root, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, after.ru_maxrss / 1024


def parse_s(folder: Path) -> float:
    """Return the CPU time of protobuf's parse of all spans, s."""
    payloads = [frame.payload for _, frame in open_run(folder).frames("traces")]
    began = time.process_time()
    for payload in payloads:
        ExportTraceServiceRequest.FromString(payload)
    return time.process_time() - began


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, action="append", default=[], help="another checkout of otel_rl")
    parser.add_argument("--spans", type=int, nargs="+", default=[200_000, 1_000_000])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    roots = [Path(__file__).resolve().parents[1], *given.against]
    for spans in given.spans:
        with tempfile.TemporaryDirectory(prefix="otel_rl_benchmark_") as folder:
            count, append_step = write(Path(folder) / "run", given.ranks, spans // given.ranks // 300, 300)
            command = [sys.executable, "-m", "otel_rl", "report", str(Path(folder) / "run"), "--json"]
            times: dict[str, list[float]] = {}
            for root in roots:
                cpu_s(command, root)  # which makes the bytecode
            for _ in range(given.rounds):
                (Path(folder) / "run" / NAME).unlink(missing_ok=True)
                for name, root in [("cold", roots[0]), ("warm", roots[0]), *((str(one), one) for one in roots[1:])]:
                    times.setdefault(name, []).append(cpu_s(command, root)[0])
            append_step()
            times["one step more"] = [cpu_s(command, roots[0])[0] for _ in range(given.rounds)]
            parsed = parse_s(Path(folder) / "run")
            print(f"\n{count} spans of {given.ranks} ranks; protobuf's parse: {parsed:.2f} s of CPU")
            own = statistics.median(times["cold"])
            for name, values in times.items():
                median = statistics.median(values)
                spread = f"{min(values):.2f}-{max(values):.2f}"
                each = f"{median / count * 1e6:.1f} us a span"
                print(f"  {name:40s} {median:7.2f} s ({spread})  x {median / own:.2f}  {each}")


if __name__ == "__main__":
    main()
