"""Trains on gloo ranks, one of them slow in one place, or all of them alike.

    torchrun --standalone --nproc-per-node=4 straggle.py WRAPPING WHERE STEPS TRUTH

WRAPPING is ``fsdp2`` or ``ddp``. WHERE is ``forward``, ``backward``, ``reward``, ``loader`` or ``between`` (under no
stage): one rank is slow there; ``collective``: collectives take longer on all ranks; ``everywhere``: all ranks are slow
in ``reward``. TRUTH is where the slow rank writes by how many seconds it was late, a number for each time.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import otel_rl
from otel_rl import clock
from tests.programs.group import leave

SLOW_RANK = 2
SLOW_S = 0.1
SKEW_NS = (0, 250_000_000, -80_000_000, 3_000_000)
"""By how much the wall clock of each rank is wrong."""
PLACES = ("forward", "backward", "reward", "loader", "between")
WIDTH, LAYERS, BATCH = 32, 3, 8


class Delay:
    """Makes a rank late, and keeps by how much."""

    def __init__(self, *, is_on: bool) -> None:
        self.is_on = is_on
        self.slept_s: list[float] = []

    def __call__(self) -> None:
        if self.is_on:
            begin = time.perf_counter()
            time.sleep(SLOW_S)
            self.slept_s.append(time.perf_counter() - begin)


class Laggard(torch.nn.Module):
    """Hands its input on, late in forward or in backward."""

    def __init__(self, forward: Delay, backward: Delay) -> None:
        super().__init__()
        self.late_forward = forward
        self.late_backward = backward

    def forward(self, value: Any) -> Any:
        self.late_forward()
        value = value.clone()
        value.register_hook(lambda _: self.late_backward())
        return value


class Prompts(Dataset[Any]):
    """As many as are asked for; the first one of each batch comes late."""

    def __init__(self, delay: Delay) -> None:
        self.delay = delay

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, number: int) -> Any:
        if number % BATCH == 0:
            self.delay()
        return torch.full((WIDTH,), float(number % 7))


def skew_clock(rank: int) -> None:
    """Have this process believe in another wall clock."""
    true_ns, true_of = clock.time_ns, clock.clock_gettime_ns  # otel_rl does not ask ``time``, which programs replace
    clock.time_ns = lambda: true_ns() + SKEW_NS[rank]
    clock.clock_gettime_ns = lambda which: true_of(which) + SKEW_NS[rank] * (which == clock.COARSE)


def slow_collectives() -> None:
    """Have every collective take longer on all ranks alike, below ``torch.distributed``."""
    for name in ("all_gather_single", "reduce_scatter_single"):
        setattr(dist.ProcessGroup, name, _slowed(dist.ProcessGroup.__dict__[name]))


def _slowed(method: Any) -> Callable[..., Any]:
    def slowed(self: Any, *args: Any) -> Any:
        time.sleep(SLOW_S / 10)
        return method.__get__(self)(*args)

    return slowed


def slow_reduction(_, bucket):
    """Reduce as DDP does, and have that take longer on all ranks alike; torch takes annotations only of its own.

    On a thread: what is hung on a reduction that is over already would run at once, inside of the backward.
    """
    reduced, promised = dist.all_reduce(bucket.buffer(), async_op=True).get_future(), torch.futures.Future()

    def late() -> None:
        total = reduced.wait()[0]
        time.sleep(SLOW_S)
        promised.set_result(total / dist.get_world_size())

    threading.Thread(target=late).start()
    return promised


def make_model(wrapping: str, laggard: Laggard, *, slowly: bool) -> Any:
    """Make a small model whose laggard lies between two layers, and wrap it."""
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(LAYERS)]
    model = torch.nn.Sequential(layers[0], laggard, *layers[1:], torch.nn.Linear(WIDTH, 1))
    if wrapping == "ddp":
        replicated = DistributedDataParallel(model)
        if slowly:
            replicated.register_comm_hook(None, slow_reduction)
        return replicated
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for part in (*layers, model):
        fully_shard(part, mesh=mesh)
    if slowly:
        slow_collectives()
    return model


def train(model: Any, batches: Iterator[Any], steps: int, late_reward: Delay, late_between: Delay) -> None:
    """Do what every loop does, each in its stage; loading, backward and optimizer are stages without our help."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for number in range(1, steps + 1):
        with otel_rl.step(number):
            batch = next(batches)
            late_between()
            with otel_rl.stage("reward"):
                late_reward()
                reward = batch.mean()
            with otel_rl.stage("train.forward"):
                loss = (model(batch) - reward).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def main() -> None:
    """Train and end."""
    wrapping, where, steps, truth = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    skew_clock(rank)
    otel_rl.instrument()
    dist.init_process_group("gloo")
    delays = {place: Delay(is_on=rank == SLOW_RANK and where == place) for place in PLACES}
    delays["reward"].is_on |= where == "everywhere"
    laggard = Laggard(delays["forward"], delays["backward"])
    model = make_model(wrapping, laggard, slowly=where == "collective")
    batches = iter(DataLoader(Prompts(delays["loader"]), batch_size=BATCH))
    train(model, batches, steps, delays["reward"], delays["between"])
    if where in delays and rank == SLOW_RANK:
        truth.write_text(json.dumps(delays[where].slept_s))
    leave()


if __name__ == "__main__":
    main()
