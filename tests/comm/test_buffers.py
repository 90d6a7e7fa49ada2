"""Tests of the estimate of what communicators take of a device."""

from __future__ import annotations

import pytest

from otel_rl import vocabulary as v
from otel_rl.comm import buffers
from otel_rl.comm.memory import comm
from otel_rl.hooks import CollectiveHook
from otel_rl.hooks.hook import wrap
from otel_rl.probes.device import DeviceInUse
from otel_rl.probes.memory import cuda_reader, probes
from otel_rl.process.state import state
from tests.fake_cuda import FakeCuda
from tests.fixtures import Recording


class Group:
    """A process group."""

    group_name, group_desc = "0", "default_pg"

    def size(self) -> int:
        return 2


def use(cuda: FakeCuda) -> None:
    """Have a device in use."""
    probes.read_device = cuda_reader(cuda)
    probes.device = DeviceInUse(cuda)


def points(recording: Recording) -> list[float]:
    """End the recording and give what it says of communicators."""
    probes.read_device = None
    return [point.value for point in recording.stop().points(v.COMM_BUFFERS)]


def test_what_the_first_collective_of_a_group_takes_is_counted(recording: Recording) -> None:
    """Without what torch itself has reserved meanwhile; later collectives make nothing."""
    cuda, group = FakeCuda(), Group()
    cuda.usage = (600, 1000)
    use(cuda)
    state.identify(world_size=2)

    def all_reduce(tensor: object, group: Group) -> None:
        free, total = cuda.usage
        cuda.stats["reserved_bytes"]["all"]["current"] += 20
        cuda.usage = (free - 120, total)

    reduce = wrap(CollectiveHook(target="torch.distributed:all_reduce"), all_reduce)
    for _ in range(3):
        reduce(None, group)
    assert [100] == points(recording)


def test_groups_add_up(recording: Recording) -> None:
    """As far as they took anything; what is given back is no group's."""
    cuda = FakeCuda()
    use(cuda)
    for free in (600, 590, 590, 610, 580):
        cuda.usage = (600, 1000)
        buffers.begin()
        cuda.usage = (free, 1000)
        buffers.end()
    assert [10, 20, 40] == points(recording)


def test_without_a_device_nothing_is_estimated(recording: Recording) -> None:
    """Nor with one that cannot say how full it is."""
    buffers.begin()
    buffers.end()
    cuda = FakeCuda()
    use(cuda)
    cuda.lost = True
    buffers.begin()
    buffers.end()
    assert (0, []) == (comm.buffers, points(recording))


def test_a_collective_that_fails_made_nothing(recording: Recording) -> None:
    """What comes into use behind it belongs to no communicator."""
    cuda, group = FakeCuda(), Group()
    cuda.usage = (600, 1000)
    use(cuda)
    state.identify(world_size=2)

    def fail(tensor: object, group: Group) -> None:
        raise RuntimeError("the network is away")

    with pytest.raises(RuntimeError, match="the network is away"):
        wrap(CollectiveHook(target="torch.distributed:all_reduce"), fail)(None, group)
    cuda.usage = (100, 1000)
    wrap(CollectiveHook(target="torch.distributed:barrier"), lambda group: None)(group=group)
    assert [] == points(recording)
