"""Sharded models, groups and waits on gloo ranks; writes what really happened, and what torch itself counted."""

from __future__ import annotations

import hashlib
import json
import pickle
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import otel_rl
from otel_rl.flusher import thread as flusher
from tests.programs.group import leave

SLOW_RANK = 1
SLOW_S = 0.1


class Slow(torch.autograd.Function):
    """Hands a gradient through, behind what holds it up."""

    @staticmethod
    def forward(ctx: Any, value: Any, hold_up: Callable[[], None]) -> Any:
        ctx.hold_up = hold_up
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.hold_up()
        return gradients[0], None


class Meeting:
    """A place at which ranks wait for each other in the store, without a collective."""

    def __init__(self, name: str) -> None:
        self.store = dist.PrefixStore(name, dist.distributed_c10d._get_default_store())

    def come(self, rank: int) -> None:
        """Say that a rank is there."""
        self.store.set(str(rank), "there")

    def wait(self, ranks: Iterable[int]) -> None:
        """Wait until so many ranks are there."""
        self.store.wait([str(rank) for rank in ranks])


class Recorder:
    """Torch's own record of collectives."""

    def __init__(self) -> None:
        self.last = -1

    def new(self) -> dict[str, int]:
        """Count the collectives since the last call, by torch's name."""
        entries = pickle.loads(_dump_fr_trace(True, False, False))["entries"]
        fresh = [entry for entry in entries if entry["record_id"] > self.last]
        self.last = max((entry["record_id"] for entry in entries), default=-1)
        return Counter(entry["profiling_name"].partition(":")[2] for entry in fresh)


def layers(seed: int = 0) -> Any:
    """Make a small model, the same on all ranks."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 1))


def digest(model: Any) -> str:
    """Sum up parameters and gradients, bit by bit."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        for tensor in (parameter, parameter.grad):
            local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            found.update(local.detach().numpy().tobytes())
    return found.hexdigest()


def sharded(rank: int) -> Any:
    """Train with FSDP2 and clip by norm, which DTensor reduces."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    model(torch.full((4, 8), 1.0 + rank)).sum().backward()
    return model


def replicated(model: Any, rank: int, hold_up: Callable[[], None] = lambda: None) -> Any:
    """Do the forward of a micro-batch with DDP and give its loss, whose backward may be held up at its begin."""
    batch = torch.randn(4, 8, generator=torch.Generator().manual_seed(rank))
    return Slow.apply(model(batch), hold_up).sum()


def train_late(model: Any, rank: int, number: int) -> None:
    """Train a micro-batch with DDP, the backward of one rank late.

    All begin it at once, and the late one goes on when the others have had their last local gradients for a while:
    whoever else the machine holds up, the others wait for this rank.
    """
    ranks = range(dist.get_world_size())
    others = [other for other in ranks if other != SLOW_RANK]
    begun, reducing = Meeting(f"begun {number}"), Meeting(f"reducing {number}")
    left = {id(parameter) for parameter in model.parameters()}

    def hold_up() -> None:
        if rank == SLOW_RANK:
            reducing.wait(others)
            time.sleep(SLOW_S)

    def has_gradient(parameter: Any) -> None:
        left.discard(id(parameter))
        if not left:
            reducing.come(rank)

    handles = [parameter.register_post_accumulate_grad_hook(has_gradient) for parameter in model.parameters()]
    loss = replicated(model, rank, hold_up)
    begun.come(rank)
    begun.wait(ranks)
    loss.backward()
    for handle in handles:
        handle.remove()


def compiled() -> dict[str, Any]:
    """Train a compiled model with DDP, whose forward calls a collective between two graphs; say what Dynamo did."""
    from torch._dynamo.utils import counters

    model = DistributedDataParallel(layers())
    counters.clear()
    function = torch.compile(model, backend="aot_eager")
    for _ in range(2):
        function(torch.ones(4, 8)).sum().backward()
    return {"frames": counters["frames"], "stats": counters["stats"], "breaks": sum(counters["graph_break"].values())}


def groups(rank: int, size: int) -> None:
    """Collectives in a group of every second rank, which the others call as well, and in all."""
    half = dist.new_group(list(range(0, size, 2)), group_desc="even")
    everyone = torch.ones(2)
    dist.all_reduce(everyone)
    dist.all_reduce(torch.ones(2), group=half)
    dist.all_reduce(everyone, op=dist.ReduceOp.MAX)
    dist.all_reduce(tensor=torch.ones(2), group=half)
    if rank == 0:
        dist.send(torch.ones(2), dst=1)
    if rank == 1:
        dist.recv(torch.ones(2), src=0)
    dist.barrier()


def on_a_thread(function: Callable[[], object]) -> None:
    """Call a function on a thread of its own."""
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def train(rank: int, size: int) -> dict[str, Any]:
    """Do every part in a step of its own and give what happened."""
    truth: dict[str, Any] = {}
    recorder = Recorder()
    torch.manual_seed(0)
    with otel_rl.step(1), otel_rl.stage("sharded"):
        recorder.new()
        model = sharded(rank)
        truth["sharded"] = recorder.new()
    with otel_rl.step(2), otel_rl.stage("clip"):
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        truth["norm"] = float(norm.full_tensor())
        truth["clip"] = recorder.new()
    truth["fsdp"] = digest(model)
    ddp = DistributedDataParallel(layers())
    for number in range(3, 6):
        with otel_rl.step(number):
            train_late(ddp, rank, number)
    with otel_rl.step(6):
        with ddp.no_sync():
            replicated(ddp, rank).backward()
        truth["hooks"] = len(ddp.module[0].weight._post_accumulate_grad_hooks or ())
    truth["ddp"] = digest(ddp)
    mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("dp",))
    with otel_rl.step(7), otel_rl.stage("redistribute"):
        tensor = distribute_tensor(torch.arange(float(4 * size)), mesh, [Shard(0)], src_data_rank=None)
        truth["whole"] = tensor.redistribute(mesh, [Replicate()]).to_local().tolist()
    with otel_rl.step(8), otel_rl.stage("asynchronous"):
        work = dist.all_reduce(torch.ones(1024), async_op=True)
        work.wait()
        work.wait()
        dist.all_reduce(torch.ones(16), async_op=True)  # nobody waits for it
        dist.barrier()
    with otel_rl.step(9), otel_rl.stage("groups"):
        groups(rank, size)
    with otel_rl.step(10), otel_rl.stage("on a thread"):
        on_a_thread(dist.barrier)
    with otel_rl.step(11):
        truth["compiled"] = compiled()
    critic = DistributedDataParallel(layers(seed=1))
    with otel_rl.step(12):
        train_late(critic, rank, 12)  # beside another model that is wrapped
    return truth


def main() -> None:
    """Train, then make the process group anew and use it."""
    flusher.PERIOD_S = 3600.0  # a launch that a cycle happens to see has a row, too, besides its wait
    otel_rl.instrument()
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    truth = train(rank, size)
    # In the same store torch finds the addresses of the first group's dead connections.
    store = dist.PrefixStore("again", dist.distributed_c10d._get_default_store())
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    with otel_rl.step(13), otel_rl.stage("again"):
        dist.barrier()
    otel_rl.uninstrument()
    truth["restored"] = (
        type(dist.distributed_c10d.Work.__dict__["wait"]).__name__,
        dist.all_reduce.__module__,
        dist.all_reduce(torch.ones(1), async_op=True).wait(),
    )
    Path(sys.argv[1].format(rank=rank)).write_text(json.dumps(truth))
    leave()


if __name__ == "__main__":
    main()
