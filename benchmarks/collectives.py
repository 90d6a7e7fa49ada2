"""What a collective and a backward of DDP cost more on the training thread when they are recorded, on one gloo process.

    python benchmarks/collectives.py

CPU time of the thread; the flusher is kept from running. One process takes itself for one of two, so that nothing waits
and the cost is not lost in what gloo does.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from measure import keep, make_folder, show, side_by_side

os.environ["OTEL_RL_DIR"] = make_folder()

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel

import otel_rl
from otel_rl.comm.memory import comm
from otel_rl.process.hooked import hooking
from otel_rl.process.state import state


def repeat(operation: Callable[[], object], *, known: bool = True) -> Callable[[int], None]:
    """Make a function that does an operation many times and forgets what was queued."""

    def run(count: int) -> None:
        wrapped = list(comm.wrapped)
        if not known:
            comm.wrapped.clear()
        for _ in range(count):
            operation()
        for model in wrapped:
            comm.wrapped.add(model)
        state.queue.clear()

    return run


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--count", type=int, default=1000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    otel_rl.instrument(("torch",))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    state.identify(world_size=2, rank=0)
    state.awake = True  # no flusher: only the hot path is measured
    tensor, group = torch.ones(16), dist.group.WORLD
    model = DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(50))))
    batch = torch.ones(2, 8)
    host_reduce, host_functional = dist.all_reduce.__wrapped__, functional.all_reduce.__wrapped__
    host_wait = functional.wait_tensor.__wrapped__

    def alone() -> None:
        hooking.in_collective.active = True  # what a collective calls in turn is passed on
        host_reduce(tensor)
        hooking.in_collective.active = False

    def launched_alone() -> None:
        hooking.in_collective.active = True
        host_reduce(tensor, async_op=True).wait()
        hooking.in_collective.active = False

    def functional_alone() -> None:
        host_wait(host_functional(tensor, "sum", group).elem)

    def backward() -> None:
        model(batch).sum().backward()

    with otel_rl.step(1), otel_rl.stage("reward"):
        tables = {
            "one collective": side_by_side(
                {
                    "all_reduce": repeat(alone),
                    "all_reduce, recorded": repeat(lambda: dist.all_reduce(tensor)),
                    "all_reduce and wait": repeat(launched_alone),
                    "all_reduce and wait, recorded": repeat(lambda: dist.all_reduce(tensor, async_op=True).wait()),
                    "functional all_reduce and wait": repeat(functional_alone),
                    "functional all_reduce and wait, recorded": repeat(
                        lambda: functional.wait_tensor(functional.all_reduce(tensor, "sum", group).elem)
                    ),
                },
                options.count,
            ),
            "forward and backward of DDP, 100 parameters": side_by_side(
                {
                    "wait not measured": repeat(backward, known=False),
                    "wait measured": repeat(backward),
                },
                max(options.count // 50, 10),
            ),
        }
    for title, figures in tables.items():
        show(title, figures)
    keep(options.json, tables)
    otel_rl.uninstrument()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
