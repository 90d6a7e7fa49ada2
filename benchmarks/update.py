"""What it costs to look into an update: otel_rl, torch.profiler and TraceML 0.5.0, in turns on one model, in one run.

    python benchmarks/update.py [--traceml PYTHON]

Two gloo ranks train the same layers twice: sharded by FSDP2, which makes about 200 collectives a step of 100 ms, and
each rank for itself, which makes none, so that what a micro-batch costs and what a collective costs come apart.

**Judged** is CPU time: what the training thread needs more than in the turns without a tool right before and after it,
and what the tool's Python threads need. Two ranks that wait for one another on two cores make wall time useless for a
difference of 1 %; it is shown with its spread. Intervals are bootstrap 95 % intervals of the median over the rounds;
"undisturbed" compares the tenth of all steps that needed least with and without the tool, for a machine that is busy.
``control`` is a turn without a tool between two others. ``--traceml`` takes an environment with ``traceml-ai==0.5.0``,
torch and otel_rl.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

DRAWS = 4000
RANK = Path(__file__).with_name("update_rank.py")
STEP_MS = 100.0


def run(options: argparse.Namespace, scratch: Path, *, sharded: bool) -> dict[str, Any]:
    """Run both ranks, and the aggregator of TraceML where it is asked for."""
    python = options.traceml or sys.executable
    port, rendezvous = free_port(), free_port()
    found = scratch / "found.json"
    environ = {
        **os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(rendezvous), "WORLD_SIZE": "2",
        "OTEL_RL_DIR": str(scratch / "runs"), "OTEL_RL_SIDECAR": "false", "OMP_NUM_THREADS": "1",
        "TRACEML_LOGS_DIR": str(scratch / "logs"),
    }  # fmt: skip
    command = [python, str(RANK), "--json", str(found), "--port", str(port), *(["--sharded"] if sharded else [])]
    for name in ("rounds", "steps", "layers", "width", "batch", "micro_batches"):
        command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    aggregator = None
    if options.traceml:
        command.append("--traceml")
        serve = [str(Path(python).with_name("traceml")), "serve", "--run-name", "update", "--nproc-per-node", "2"]
        aggregator = subprocess.Popen(
            [*serve, "--aggregator-port", str(port), "--logs-dir", str(scratch / "logs")],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=scratch,
        )  # fmt: skip
    quiet = {"stdout": subprocess.DEVNULL, "stderr": None if options.verbose else subprocess.DEVNULL}
    try:
        ranks = [
            subprocess.Popen(command, env={**environ, "RANK": rank, "LOCAL_RANK": rank}, cwd=scratch, **quiet)
            for rank in ("0", "1")
        ]
        codes = [rank.wait(options.limit) for rank in ranks]
        if any(codes):
            raise SystemExit(f"the ranks ended with {codes}; --verbose shows why")
    finally:
        for process in [*ranks, *([aggregator] if aggregator is not None else [])]:
            process.kill()
            process.wait()
    document: dict[str, Any] = json.loads(found.read_text())
    return document


def free_port() -> int:
    """Find a port that is free."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def figures(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return for each tool how much more a step took than in the turns without one right before and after it."""
    document: dict[str, Any] = {}
    bare = least([off for one in rounds for _, *beside in one.values() for off in beside])
    for name in sorted(rounds[0]):
        turns = [one[name] for one in rounds]
        document[name] = {
            "bare_thread_ms": statistics.median(mid("cpu", off) for _, *beside in turns for off in beside),
            "bare_wall_ms": quartiles([mid("wall", off) for _, *beside in turns for off in beside]),
            "added_thread_ms": interval([more("cpu", *turn) for turn in turns]),
            "added_least_ms": least([tool for tool, *_ in turns]) - bare,
            "added_wall_ms": quartiles([more("wall", *turn) for turn in turns]),
            "threads_ms": statistics.fmean(tool["threads"] for tool, *_ in turns),
        }
    return document


def more(what: str, tool: dict[str, Any], before: dict[str, Any], behind: dict[str, Any]) -> float:
    """Subtract what a step took without the tool."""
    return mid(what, tool) - (mid(what, before) + mid(what, behind)) / 2


def least(turns: list[dict[str, Any]]) -> float:
    """Take what the tenth of all steps needs at most that the machine disturbed least, ms of the training thread."""
    return statistics.quantiles([step for turn in turns for step in turn["cpu"]], n=10)[0]


def mid(what: str, turn: dict[str, Any]) -> float:
    """Take the middle one of a turn's steps, ms."""
    return statistics.median(turn[what])


def quartiles(values: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, median, high = statistics.quantiles(values, n=4)
    return {"median": median, "low": low, "high": high}


def interval(values: list[float]) -> dict[str, float]:
    """Median with its bootstrap 95 % interval."""
    draw = random.Random(11)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(DRAWS))
    return {"median": statistics.median(values), "low": medians[DRAWS // 40], "high": medians[-DRAWS // 40]}


def show(title: str, found: dict[str, Any]) -> None:
    """Print a table; shares are of a step of 100 ms."""
    print(f"\n{title}")
    heads = f"{'bare, ms':>10s}{'more, ms (95 %)':>24s}{'undisturbed':>13s}"
    heads += f"{'threads, ms':>13s}{'of 100 ms':>11s}{'wall more, ms':>26s}"
    print(f"  {'':16s}{heads}")
    for name, row in found.items():
        more, wall = row["added_thread_ms"], row["added_wall_ms"]
        spread = f"{more['median']:.2f} ({more['low']:.2f} to {more['high']:.2f})"
        walls = f"{wall['median']:.1f} ({wall['low']:.1f} to {wall['high']:.1f})"
        share = (more["median"] + row["threads_ms"]) / STEP_MS
        cells = f"{row['bare_thread_ms']:10.1f}{spread:>24s}{row['added_least_ms']:13.2f}"
        print(f"  {name:16s}{cells}{row['threads_ms']:13.2f}{share:11.2%}{walls:>26s}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traceml", metavar="PYTHON", help="of an environment with TraceML, torch and otel_rl")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--steps", type=int, default=3, help="of a turn that count")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--limit", type=float, default=3600, help="s")
    parser.add_argument("--verbose", action="store_true", help="show what the ranks say")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    document: dict[str, Any] = {"load": os.getloadavg()[0]}
    for sharded, title in ((True, "FSDP2"), (False, "no collectives")):
        with tempfile.TemporaryDirectory() as scratch:
            found = run(options, Path(scratch), sharded=sharded)
        document[title] = {"ways": figures(found["rounds"]), "calls": found["calls"]}
        rows, number = found["calls"]["rows"], found["calls"]["calls"]
        show(
            f"{title}: {rows} rows of collectives a step, {number} calls of otel_rl's functions",
            document[title]["ways"],
        )
    document["per"] = parts(document, options.micro_batches)
    for name, row in document["per"].items():
        print(f"  {name:16s}{row['micro_batch_us']:8.0f} us a micro-batch{row['collective_us']:8.1f} us a collective")
    if options.json:
        options.json.write_text(json.dumps(document, indent=2) + "\n")


def parts(document: dict[str, Any], micro_batches: int) -> dict[str, Any]:
    """Take the cost apart: without collectives by the micro-batch, and what FSDP2 adds by the row of a collective."""
    found = {}
    for name in document["FSDP2"]["ways"]:
        with_them, without = (
            document[title]["ways"][name]["added_thread_ms"]["median"] + document[title]["ways"][name]["threads_ms"]
            for title in ("FSDP2", "no collectives")
        )
        found[name] = {
            "micro_batch_us": 1e3 * without / micro_batches,
            "collective_us": 1e3 * (with_them - without) / document["FSDP2"]["calls"]["rows"],
        }
    return found


if __name__ == "__main__":
    main()
