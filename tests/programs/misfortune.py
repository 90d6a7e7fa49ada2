"""Two gloo ranks to which something happens in the middle of the run.

    torchrun --standalone --nproc-per-node=2 misfortune.py hang|disagree|late FILE

``hang``: in step 6 each rank is in a collective that the other does not call, for ever. ``disagree``: rank 1 counts its
steps from 3 on, rank 0 from 1. ``late``: in step 6 rank 1 begins its backward only when the file is there; DDP waits.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import otel_rl
from tests.programs.group import leave

STEPS = 6


def train(rank: int, release: Path) -> None:
    """Train with DDP."""
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    for number in range(1, STEPS + 1):
        with otel_rl.step(number):
            loss = model(torch.ones(2, 4)).sum()
            with otel_rl.stage("advantage"):
                while rank and number == STEPS and not release.exists():
                    time.sleep(0.1)
            loss.backward()


def main() -> None:
    """Do as many steps as there is time for."""
    what = sys.argv[1]
    otel_rl.instrument()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if what == "late":
        train(rank, Path(sys.argv[2]))
        leave()
        return
    pair = dist.new_group([0, 1], group_desc="pair")
    first = 3 if what == "disagree" and rank else 1
    for number in range(first, first + STEPS):
        is_last = number == first + STEPS - 1
        with otel_rl.step(number):
            with otel_rl.stage("reward"):
                if what == "hang" and is_last and rank:
                    dist.barrier(group=pair)
                dist.all_reduce(torch.ones(1))
            with otel_rl.stage("advantage"):
                dist.barrier(group=pair)
    leave()


if __name__ == "__main__":
    main()
