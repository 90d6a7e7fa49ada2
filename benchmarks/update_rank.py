"""One rank of ``update.py``: trains the same model in turns, under each tool and under none right before and after it.

Every tool is really off in the turns of the others: otel_rl undoes its patches, and those of TraceML are taken out and
put in again. Before each turn the ranks wait for one another; its first step is not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import otel_rl
from otel_rl import entry

OURS = str(Path(otel_rl.__file__).parent)


class Off:
    """Nothing is measured but by the benchmark."""

    def begin(self) -> None:
        """Switch the tool on."""

    def settle(self) -> None:
        """Have it finish what it does after the steps of this turn."""

    def end(self) -> None:
        """Switch it off."""

    def step(self, number: int) -> Any:
        """Give what a user would put around a step."""
        return contextlib.nullcontext()

    def stage(self, name: str) -> Any:
        """Give what a user would put around a part of it."""
        return contextlib.nullcontext()


class OtelRl(Off):
    """As in a loop without a framework: step and forward are the user's, the remainder is patched."""

    def begin(self) -> None:
        otel_rl.instrument(("torch",))

    def settle(self) -> None:
        entry._parts.flusher.flush(30.0)  # not otel_rl.flush: that one also collects the metrics of other libraries

    def end(self) -> None:
        otel_rl.uninstrument()

    def step(self, number: int) -> Any:
        return otel_rl.step(number)

    def stage(self, name: str) -> Any:
        return otel_rl.stage(name)


class Profiler(Off):
    """torch.profiler's CPU activity as it is by default; what it does at the end of a turn is not counted."""

    def begin(self) -> None:
        self.profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
        self.profile.__enter__()

    def end(self) -> None:
        self.profile.__exit__(None, None, None)


class TraceML(Off):
    """Mode ``auto`` with its aggregator in a process of its own; what its threads do after a turn is not counted."""

    PLACES = (nn.Module, torch.Tensor, torch.autograd, torch, torch.utils.data.DataLoader)

    def __init__(self, model: nn.Module, port: int) -> None:
        import traceml_ai

        self.tool, self.model = traceml_ai, model
        before = [dict(vars(place)) for place in self.PLACES]
        traceml_ai.init(mode="auto", session_id="update", aggregator_port=port, on_missing_aggregator="raise")
        self.patches = [
            (place, name, known[name], value)
            for place, known in zip(self.PLACES, before, strict=True)
            for name, value in vars(place).items()
            if name in known and known[name] is not value and callable(value)
        ]
        assert {"__call__", "backward"} <= {name for _, name, *_ in self.patches}
        self.end()

    def begin(self) -> None:
        for place, name, _, ours in self.patches:
            setattr(place, name, ours)

    def end(self) -> None:
        for place, name, before, _ in self.patches:
            setattr(place, name, before)

    def step(self, number: int) -> Any:
        return self.tool.trace_step(self.model)


class Training:
    """A model of equal layers; sharded by FSDP2, its layers one by one, or each rank for itself."""

    def __init__(self, options: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self.micro_batches, self.is_sharded = options.micro_batches, options.sharded
        layers = [nn.Sequential(nn.Linear(options.width, options.width), nn.GELU()) for _ in range(options.layers)]
        self.model: nn.Module = nn.Sequential(*layers)
        if self.is_sharded:
            from torch.distributed.fsdp import fully_shard

            for layer in layers:
                fully_shard(layer)
            fully_shard(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6)
        self.batch = torch.randn(options.batch, options.width)
        self.number = 0

    def step(self, way: Off) -> None:
        """Do one update."""
        self.number += 1
        with way.step(self.number):
            for _ in range(self.micro_batches):
                with way.stage("rl.train.forward"):
                    loss = self.model(self.batch).square().mean()
                loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()


def threads_ns() -> int:
    """CPU time of all Python threads but this one: a tool's flusher and samplers; gloo's are none of them."""
    spent = 0
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and thread.ident is not None:
            with contextlib.suppress(OSError):  # it has just ended
                spent += time.clock_gettime_ns(time.pthread_getcpuclockid(thread.ident))
    return spent


def turn(training: Training, way: Off, steps: int) -> dict[str, Any]:
    """Train for some steps under a tool; ms of each step on this thread and by the wall, and of the tool's threads."""
    way.begin()
    dist.barrier()
    cpu, wall = [], []
    training.step(way)
    way.settle()
    before = threads_ns()
    for _ in range(steps):
        began, began_cpu = time.perf_counter_ns(), time.thread_time_ns()
        training.step(way)
        cpu.append((time.thread_time_ns() - began_cpu) / 1e6)
        wall.append((time.perf_counter_ns() - began) / 1e6)
    way.settle()
    behind = (threads_ns() - before) / 1e6 / steps
    way.end()
    return {"cpu": cpu, "wall": wall, "threads": behind}


def calls(training: Training) -> dict[str, float]:
    """Count, not time, what one step calls of otel_rl on this thread, and the rows of collectives that it makes."""
    found: Counter[str] = Counter()

    def count(frame: Any, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(OURS):
            found[f"{Path(code.co_filename).stem}.{getattr(code, 'co_qualname', code.co_name)}"] += 1

    way = OtelRl()
    way.begin()
    training.step(way)
    sys.setprofile(count)
    training.step(way)
    sys.setprofile(None)
    way.end()
    rows = found["collectives.Collective.__init__"]
    return {"rows": rows, "calls": sum(found.values()), "by_function": dict(found.most_common(30))}


def main() -> None:
    """Take turns and write the figures."""
    parser = argparse.ArgumentParser()
    for name in ("rounds", "steps", "layers", "width", "batch", "micro-batches", "port"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--sharded", action="store_true")
    parser.add_argument("--traceml", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    training = Training(options)
    ways: dict[str, Off] = {"control": Off(), "otel_rl": OtelRl(), "torch.profiler": Profiler()}
    if options.traceml:
        ways["TraceML"] = TraceML(training.model, options.port)
    for way in ways.values():
        turn(training, way, 1)
    draw, off = random.Random(7), Off()  # the same order on both ranks
    rounds = []
    for _ in range(options.rounds):
        found = {}
        for name in draw.sample(list(ways), len(ways)):
            beside = turn(training, off, options.steps)
            measured = turn(training, ways[name], options.steps)
            found[name] = measured, beside, turn(training, off, options.steps)
        rounds.append(found)
    if os.environ["RANK"] == "0":
        options.json.write_text(json.dumps({"rounds": rounds, "calls": calls(training)}))
    else:
        calls(training)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
