"""Tests of the memory probe."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.guard import errors
from otel_rl.probes import device, memory
from otel_rl.probes.device import DeviceInUse
from otel_rl.probes.memory import UNREAD, Device, MemoryReader, cuda_reader, host, peak_rss, probes, use_memory_reader
from otel_rl.trace.stage import Stage
from tests.fake_cuda import FakeCuda
from tests.fixtures import Recording


def test_a_reading_is_the_memory_of_this_process() -> None:
    """As psutil sees it, to within what happens meanwhile."""
    virtual, resident = host(MemoryReader().read()[0])
    seen = psutil.Process().memory_info()
    assert abs(resident - seen.rss) < 64 << 20
    assert abs(virtual - seen.vms) < 256 << 20
    assert peak_rss() >= resident - (64 << 20)


@pytest.mark.parametrize(("text", "expected"), [(b"3 2 1 0", (3, 2)), (b"", (0, 0)), (b"3 2", (3, 2))])
def test_pages_become_bytes(text: bytes, expected: tuple[int, int]) -> None:
    """Nothing read is nothing."""
    assert tuple(pages * memory.PAGE for pages in expected) == host(text)


def test_a_closed_descriptor_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that makes itself a daemon closes every file."""
    opened = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda *args: opened.append(real(*args)) or opened[-1])
    read = MemoryReader().read
    os.close(opened[0])
    assert (b"", None) == read()


def test_without_proc_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """No /proc, no trouble."""

    def fail(*args: Any) -> int:
        raise FileNotFoundError

    monkeypatch.setattr(os, "open", fail)
    assert (b"", None) == MemoryReader().read()


def fake_cuda(initialized: bool = True, fails: bool = False) -> Any:
    """Make what stands in for torch.cuda."""

    def stats(device: int) -> dict[str, Any]:
        if fails:
            raise RuntimeError("CUDA error")
        return {
            "allocated_bytes": {"all": {"current": 1, "peak": 2}},
            "reserved_bytes": {"all": {"current": 3, "peak": 4}},
        }

    return SimpleNamespace(
        is_initialized=lambda: initialized,
        current_device=lambda: 0,
        memory=SimpleNamespace(memory_stats_as_nested_dict=stats),
    )


@pytest.mark.parametrize(
    ("cuda", "expected"),
    [(fake_cuda(), Device(1, 2, 3, 4)), (fake_cuda(initialized=False), None), (fake_cuda(fails=True), None)],
)
def test_the_device_is_read_only_once_it_is_in_use(cuda: Any, expected: Device | None) -> None:
    """It is never initialised by us, and a device that failed is the host's own trouble."""
    read = cuda_reader(cuda)
    assert expected == read(None)


def test_a_reading_of_the_host_meets_the_device() -> None:
    """Once it is in use, and never again; one that fails is counted, and the host's memory is read all the same."""
    met, fails = [], True

    def meet(index: int | None) -> Device | None:
        if fails:
            raise TypeError
        met.append(probes.device)
        probes.device = DeviceInUse(FakeCuda())
        return Device(1, 2, 3, 4)

    read = MemoryReader(meet).read
    found = [read()]
    assert {"find the device": 1} == dict(errors)
    errors.clear()
    fails = False
    found += read(), read()
    probes.device = None
    assert [None] == met
    assert all(host(text)[0] > 0 and device is None for text, device in found)


def test_a_device_is_read_for_each_end_of_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a user's own stages for 512 at once, and one every 4 ms behind them; one that was not read tells nothing."""
    now, count = 1 << 40, 0

    def read(index: int | None) -> Device:
        nonlocal count
        count += 1
        return Device(count, 0, 0, 0)

    monkeypatch.setattr(device, "monotonic_ns", lambda: now)
    monkeypatch.setattr(probes, "read_device", read)
    in_use = DeviceInUse(FakeCuda())

    def both_ends(number: int, *, coarse: bool = False) -> int:
        """Say of how many stages both ends were read."""
        found = 0
        for _ in range(number):
            stage = Stage("a", coarse=coarse)
            stage.before = stage.after = UNREAD
            in_use.begin(stage)
            in_use.end(stage)
            assert (stage.before[1] is None) == (stage.after[1] is None)
            found += stage.before != stage.after
        return found

    at_once = both_ends(1000)
    coarse = both_ends(1000, coarse=True)
    now += 3_999_999
    too_soon = both_ends(1)
    now += 1
    later = both_ends(1000)
    now += 40_000_000
    much_later = both_ends(1000)
    now += 1 << 50
    assert (512, 1000, 0, 1, 10, 512) == (at_once, coarse, too_soon, later, much_later, both_ends(1000))
    assert set() == in_use._unread


def test_a_descriptor_that_the_host_took_over_is_not_read_again(tmp_path: Path) -> None:
    """A program that closed every file has a file of its own under our number: no bytes of it are numbers of ours."""
    reader = MemoryReader()
    own, statm = reader.is_own(), reader._statm
    assert statm is not None
    taken = statm.number
    host_file = os.open(tmp_path / "secret", os.O_RDWR | os.O_CREAT)
    os.write(host_file, b"password=hunter2 12 34")
    os.dup2(host_file, taken)
    assert (True, False, (0, 0)) == (own, reader.is_own(), host(reader.read()[0]))
    reader.close()
    assert b"password" == os.pread(taken, 8, 0)
    os.close(taken)
    os.close(host_file)


def test_a_device_has_parts_where_its_allocator_counts_them() -> None:
    """An allocator of somebody else's may count nothing at all."""
    cuda = FakeCuda()
    read = cuda_reader(cuda)
    cuda.stats |= {
        name: {"all": {"current": place}}
        for place, name in enumerate(("active_bytes", "inactive_split_bytes", "requested_bytes"))
    }
    found = [read(None)]
    for cuda.stats in ({}, {"allocated_bytes": {"all": {"current": 1, "peak": 1}}}):
        found.append(read(None))
    assert [Device(1, 2, 3, 4, 0, 1, 2), None, None] == found


def test_a_device_is_met_once_it_is_in_use() -> None:
    """Until then nothing of ours is done at the ends of stages."""
    cuda, met = FakeCuda(), []
    cuda.initialized = False

    def in_use() -> None:
        probes.device = DeviceInUse(cuda)
        met.append(cuda.initialized)

    read = cuda_reader(cuda, in_use)
    read(None)
    cuda.initialized = True
    read(None)
    read(None)
    probes.device = None
    assert [True] == met


def test_a_device_is_asked_how_full_it_is_at_most_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never during a capture; one that is lost, or cannot say, tells nothing."""
    cuda, now = FakeCuda(), 5_000_000_000
    monkeypatch.setattr(device, "monotonic_ns", lambda: now)
    in_use = DeviceInUse(cuda)
    asked = []
    for _ in range(3):
        asked.append(in_use.usage_now_and_then())
        now += 500_000_000
    cuda.capturing = True
    asked.append(in_use.usage())
    cuda.capturing, cuda.lost = False, True
    asked.append(in_use.usage())
    assert [(6, 10), None, (6, 10), None, None, None] == [*asked, DeviceInUse(SimpleNamespace()).usage()]


def test_a_step_tells_the_memory_of_its_device(recording: Recording) -> None:
    """As the allocator and the driver saw it at its end."""
    cuda = FakeCuda()
    use_memory_reader(cuda_reader(cuda))
    probes.device = DeviceInUse(cuda)
    for number in (1, 2):
        with otel_rl.step(number):
            recording.tick(2000)
    points = [point for point in recording.stop().points() if point.name.startswith("rl.memory.device.")]
    expected = {v.ALLOCATED: 1, v.RESERVED: 3, v.SLACK: pytest.approx(2 / 3), v.NON_TORCH: 1}
    assert expected == {point.name: point.value for point in points}
    assert 8 == len(points)


@pytest.mark.gpu
def test_a_real_device_is_read() -> None:
    """What torch tells by its own functions; and its driver knows of more in use than torch has reserved."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no device")
    tensor = torch.ones(1 << 20, device="cuda")
    found, usage = cuda_reader(torch.cuda)(None), DeviceInUse(torch.cuda).usage()
    assert found is not None and usage is not None
    assert (torch.cuda.memory_allocated(), torch.cuda.max_memory_reserved()) == (found.allocated, found.reserved_peak)
    assert (found.active or 0) >= found.allocated >= (found.requested or 0) >= tensor.nbytes
    assert usage[1] - usage[0] > found.reserved
