"""Trains on a 2 x 2 mesh of gloo ranks: two pipeline stages, the second of which computes for longer.

    torchrun --standalone --nproc-per-node=4 mesh.py STEPS

The mesh is made by a name that was taken out of torch before anybody instrumented it.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import otel_rl
from tests.programs.group import leave

SHORT_S, LONG_S = 0.01, 0.06


def main() -> None:
    """Train and end."""
    torch.set_num_threads(1)
    otel_rl.instrument()
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    assert mesh["dp"].size() == 2, "a slice is a mesh, too"
    of_stage, is_second = mesh.get_group("dp"), mesh.get_local_rank("pp") == 1
    for number in range(1, int(sys.argv[1]) + 1):
        with otel_rl.step(number):
            with otel_rl.stage("sample") as span:
                span.set_attribute("rl.sample.batch_size", 8)
                time.sleep(SHORT_S)
            with otel_rl.stage("train.forward"):
                time.sleep(LONG_S if is_second else SHORT_S)
                dist.all_reduce(torch.ones(4), group=of_stage)
    leave()


if __name__ == "__main__":
    main()
