"""Starts processes that make a group of two ranks: those of an engine, as SGLang starts them, or of a training."""

from __future__ import annotations

import multiprocessing
import os
import sys
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

import otel_rl

ENGINE = "sglang"
RANKS = 2


def join(rank: int, store: str) -> None:
    """Be a rank of the group: load, join, do something together."""
    otel_rl.instrument()
    with otel_rl.stage("load"):
        pass
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    with otel_rl.stage("serve"):
        dist.all_reduce(torch.ones(1))


def serve(rank: int, store: str) -> None:
    """Be a worker of an engine; some set the variables of a launcher for it."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS))
    join(rank, store)
    leave()


def train(rank: int, store: str) -> None:
    """Be a rank of a training."""
    join(rank, store)
    with otel_rl.step(0):
        dist.all_reduce(torch.ones(1))
    leave()


def leave() -> None:
    """Leave together: who goes while another is still at it lets that one fail."""
    dist.barrier()
    dist.destroy_process_group()


def start_all(method: str, work: Any, store: str) -> None:
    """Start the ranks and wait for them; an engine has a process between them and the program."""
    context: Any = multiprocessing.get_context(method)
    ranks = [context.Process(target=work, args=(rank, store)) for rank in range(RANKS)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(120)
    print(*(rank.exitcode for rank in ranks))


def main(method: str, work: str) -> None:
    """Have the engine built, or another training done, inside a step; or start ranks and nothing else."""
    otel_rl.instrument()
    store = os.path.join(os.environ["OTEL_RL_DIR"], "..", "store")
    if work == "ranks":
        start_all(method, train, store)
        return
    with otel_rl.step(0), otel_rl.stage("build"):
        if work == "train":
            start_all(method, train, store)
            return
        core = multiprocessing.get_context(method).Process(target=start_all, args=(method, serve, store))
        core.start()
        core.join(120)


# Where multiprocessing unpickles them this file has been imported.
engine = sys.modules[ENGINE] = ModuleType(ENGINE)
for function in (serve, start_all):
    function.__module__ = ENGINE
    setattr(engine, function.__name__, function)

if __name__ == "__main__":
    main(*sys.argv[1:])
