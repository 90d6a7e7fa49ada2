"""Every collective that Python sees, on two gloo ranks; writes how often each was called and how long it took."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import otel_rl
from otel_rl.flusher import thread
from tests.programs.group import leave

thread.PERIOD_S = 3600.0  # a launch that a cycle happens to see has a row, too, besides its wait
otel_rl.instrument()


def every(rank: int) -> None:
    """Call each once, the last one asynchronously in both ways of asking for it."""
    import torch
    import torch.distributed as dist
    from torch.distributed import all_gather as imported_before

    tensor = torch.ones(1024)
    dist.all_reduce(tensor)
    dist.reduce(tensor, 0)
    dist.broadcast(tensor, src=0)
    imported_before([torch.empty(1024), torch.empty(1024)], tensor)
    dist.all_gather_into_tensor(torch.empty(2048), tensor)
    dist.reduce_scatter_tensor(torch.empty(512), tensor)
    dist.barrier()
    objects: list[Any] = [None, None]
    dist.all_gather_object(objects, {"rank": rank})
    dist.gather_object({"rank": rank}, objects if rank == 0 else None)
    dist.broadcast_object_list([rank])
    dist.all_reduce(tensor, async_op=True).wait()
    dist.all_reduce(tensor, dist.ReduceOp.SUM, None, True).wait()


def sharded() -> None:
    """Train a step of a model that FSDP2 shards, with clipping: functional collectives among them."""
    import torch
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    loss = model(torch.ones(2, 8)).sum()
    loss.backward()


def compiled() -> bool:
    """Reduce inside a compiled region, as one graph; say whether the sum is right."""
    import torch
    import torch.distributed as dist

    def summed(tensor: Any) -> Any:
        dist.all_reduce(tensor)
        return tensor * 2

    return torch.compile(summed, backend="eager", fullgraph=True)(torch.ones(4)).tolist() == [4.0] * 4


def many(rank: int) -> None:
    """Reduce forty times, and let rank 0 wait for the last five: rank 1 is late from when rank 0 is about to call."""
    import torch
    import torch.distributed as dist

    store = dist.PrefixStore("late", dist.distributed_c10d._get_default_store())
    for number in range(40):
        if number >= 35 and rank:
            store.wait([str(number)])
            time.sleep(0.05)
        elif number >= 35:
            store.set(str(number), "about to call")
        dist.all_reduce(torch.ones(4))


def main() -> None:
    """Run them in steps of their own."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    with otel_rl.step(1), otel_rl.stage("all"):
        every(rank)
    with otel_rl.step(2), otel_rl.stage("many"):
        many(rank)
    with otel_rl.step(3), otel_rl.stage("sharded"):
        sharded()
    with otel_rl.step(5), otel_rl.stage("compiled") as span:
        span.set_attribute("right", compiled())
    with otel_rl.step(6):
        dist.barrier()
        try:
            dist.broadcast(torch.ones(1), src=7)
        except (ValueError, RuntimeError) as error:
            Path(sys.argv[1].format(rank=rank)).write_text(json.dumps(type(error).__name__))
    leave()


if __name__ == "__main__":
    main()
