"""Tests of the memory probe."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from otel_rl.probes import memory
from otel_rl.probes.memory import Device, MemoryReader, cuda_reader, host, peak_rss
from otel_rl.runtime import state


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

    def stats() -> dict[str, Any]:
        if fails:
            raise RuntimeError("CUDA error")
        return {
            "allocated_bytes": {"all": {"current": 1, "peak": 2}},
            "reserved_bytes": {"all": {"current": 3, "peak": 4}},
        }

    return SimpleNamespace(
        is_initialized=lambda: initialized, memory=SimpleNamespace(memory_stats_as_nested_dict=stats)
    )


@pytest.mark.parametrize(
    ("cuda", "expected"),
    [(fake_cuda(), Device(1, 2, 3, 4)), (fake_cuda(initialized=False), None), (fake_cuda(fails=True), None)],
)
def test_the_device_is_read_only_once_it_is_in_use(cuda: Any, expected: Device | None) -> None:
    """It is never initialised by us, and a device that failed is the host's own trouble."""
    read = cuda_reader(cuda)
    assert expected == read()
    assert expected == MemoryReader(read).read()[1]


def test_with_a_device_the_host_is_read_no_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device in use is read at the ends of short stages too; until it is in use it changes nothing."""
    now, in_use, count = 1 << 40, False, 0
    real = os.pread

    def pread(*args: Any) -> bytes:
        nonlocal count
        count += 1
        return real(*args)

    def device() -> Device | None:
        return Device(now, 0, 0, 0) if in_use else None

    def read(after_ns: int) -> tuple[int, int]:
        nonlocal now
        now += after_ns
        found = state.read_memory()
        assert found[1] == device() and host(found[0])[1] > 0
        return count, state.fresh_ns

    monkeypatch.setattr(os, "pread", pread)
    monkeypatch.setattr(memory, "monotonic_ns", lambda: now)
    memory.use_memory_reader(device)
    assert [(1, memory.FRESH_NS), (2, memory.FRESH_NS)] == [read(memory.FRESH_NS), read(1)]
    in_use = True
    expected = [(2, memory.DEVICE_FRESH_NS), (2, memory.DEVICE_FRESH_NS), (3, memory.DEVICE_FRESH_NS)]
    assert expected == [read(memory.FRESH_NS), read(0), read(1)]
    state.memory_reader.close()
    state.reset()


def test_a_descriptor_that_the_host_took_over_is_not_read_again(tmp_path: Path) -> None:
    """A program that closed every file has a file of its own under our number: no bytes of it are numbers of ours."""
    reader = MemoryReader()
    own = reader.is_own()
    host_file = os.open(tmp_path / "secret", os.O_RDWR | os.O_CREAT)
    os.write(host_file, b"password=hunter2 12 34")
    os.dup2(host_file, reader._statm)
    assert (True, False, (0, 0)) == (own, reader.is_own(), host(reader.read()[0]))
    taken = reader._statm
    reader.close()
    assert b"password" == os.pread(taken, 8, 0)
    os.close(taken)
    os.close(host_file)
