"""What it costs that a sidecar judges a run while it goes on.

    python benchmarks/judging.py

First the judgement of a large run that is already read; then the whole sidecar, beside two ranks that make ten steps a
second: its share of a core, reading and judging included, and that of its thread for these.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.reading import ATTEMPT, BEGIN_NS, Step
from otel_rl import vocabulary as v
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.otlp.encode import SpanEncoder
from otel_rl.journal.read import open_run
from otel_rl.journal.write import Writer
from otel_rl.records import MetricPoints, Number
from otel_rl.report import cache
from otel_rl.report.rows.evidence import findings
from otel_rl.report.rows.rule_file import rule_settings
from otel_rl.report.source import Source
from otel_rl.runs.cycles import collect_seldom

NUMBERS = v.REWARD_SCORE, v.LOSS, v.GRAD_NORM, v.ENTROPY, v.KL_REFERENCE, v.RESPONSE_LENGTH, v.LEARNING_RATE
LOOP = """
import sys, time
import otel_rl

otel_rl.instrument()
for number in range(1, int(sys.argv[1]) + 1):
    began = time.monotonic()
    with otel_rl.step(number):
        for stage in ("rollout", "reward", "logprob", "advantage", "update"):
            with otel_rl.stage(stage):
                for _ in range(3):
                    with otel_rl.stage("part"):
                        time.sleep(0.004)
        for name in ("rl.reward.score", "rl.train.loss", "entropy", "kl", "length", "rate", "norm", "clip"):
            otel_rl.record(name, 0.5 + number % 7 / 100)
    time.sleep(max(0.0, began + 0.1 - time.monotonic()))
"""


def write(folder: Path, ranks: int, steps: int) -> int:
    """Write a run with numbers of training; return how many spans it has."""
    count = 0
    for rank in range(ranks):
        names = {
            v.SERVICE_NAME: "benchmark", v.SYSTEM: "trl", v.RUN_ID: folder.name, v.ATTEMPT_ID: ATTEMPT,
            v.ROLE: "trainer", v.RANK: rank, v.WORLD_SIZE: ranks, v.HOST_NAME: "host",
        }  # fmt: skip
        writer = Writer(folder, WriterIdentity(f"trainer-{rank}-{rank}-b"), 1 << 40)
        encoder = SpanEncoder(names)
        for number in range(1, steps + 1):
            made = Step(rank, number, rank == ranks - 1).make(1)
            count += len(made)
            at = BEGIN_NS + number * 2_000_000_000 + 400_000_000
            points = [MetricPoints(name, "gauge", "1", "", [Number(at, 0.5 + number % 7 / 100)]) for name in NUMBERS]
            for request in (*encoder.encode(made), *encoder.encode_metrics(points)):
                writer.append(request.signal, request.payload, request.count, request.first_ns, request.last_ns)
        writer.end()
    return count


def judge(folder: Path, ranks: int, steps: int) -> None:
    """Judge a run as the sidecar does, three times without TIME and with it, and print the CPU time of each."""
    count = write(folder, ranks, steps)
    run = open_run(folder)
    began = time.process_time()
    reading = cache.load(run)
    reading.read()
    print(
        f"{ranks} ranks, {steps} steps, {count} spans: read for the first time in {time.process_time() - began:.1f} s"
    )
    collect_seldom()  # as the sidecar does
    for _ in range(3):
        took_s = []
        for with_time in (False, True):
            began = time.process_time()
            source = Source(run, time.time_ns(), cache.copied(reading, run))
            found = findings(source, rule_settings(folder.parent), with_time=with_time)
            took_s.append(time.process_time() - began)
        rules = [one.rule for one in (*found.time, *found.learn, *found.health)]
        print(f"    judged in {took_s[0]:.2f} s of CPU, by all rules in {took_s[1]:.2f} s: {', '.join(rules)}")


def cpu_s(path: Path) -> float:
    """Return the CPU time of a process or a thread so far, s."""
    fields = (path / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def live(folder: Path, seconds: float) -> None:
    """Print what share of a core the sidecar of two ranks takes that make ten steps a second."""
    environ = {
        **os.environ, "OTEL_RL_DIR": str(folder), "OTEL_RL_RUN_ID": "live", "WORLD_SIZE": "2",
        "OTEL_RL_ATTEMPT_ID": ATTEMPT, "PYTHONPATH": str(Path(__file__).parents[1]),
    }  # fmt: skip
    started = time.monotonic()
    command = [sys.executable, "-c", LOOP, str(int(seconds * 10) + 900)]
    ranks = [subprocess.Popen(command, env={**environ, "RANK": str(rank)}) for rank in range(2)]
    try:
        time.sleep(10)
        while not (sidecars := [one.identity for one in open_run(folder / "live").journals if one.identity.is_sidecar]):
            time.sleep(1)
        time.sleep(30)  # it imports what it judges with
        process = Path("/proc") / str(sidecars[0].pid)
        threads = {one: (one / "comm").read_text().strip() for one in (process / "task").iterdir()}
        before, began = {one: cpu_s(one) for one in (process, *threads)}, time.monotonic()
        time.sleep(seconds)
        took_s = time.monotonic() - began
        print(f"a sidecar for {took_s:.0f} s: {(cpu_s(process) - before[process]) / took_s:.1%} of a core")
        for one, name in threads.items():
            print(f"    {name:16} {(cpu_s(one) - before[one]) / took_s:.1%}", flush=True)
    finally:
        for rank in ranks:
            rank.terminate()
            rank.wait()
    reading = cache.load(run := open_run(folder / "live"))
    reading.read()
    steps = Source(run, time.time_ns(), reading).found.steps
    print(f"    {len(steps) / (time.monotonic() - started):.1f} steps a second were recorded of both ranks together")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=180.0, help="how long the sidecar is watched; 0: not at all")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="otel_rl_judging_") as folder:
        judge(Path(folder) / "run", given.ranks, given.steps)
    if given.seconds:
        with tempfile.TemporaryDirectory(prefix="otel_rl_judging_") as folder:
            live(Path(folder), given.seconds)


if __name__ == "__main__":
    main()
