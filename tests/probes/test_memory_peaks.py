"""Tests of exact peaks: what the host reads is what it would read without us, and a stage's peak is its own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.config import Config
from otel_rl.integrations.torch.memory import exact_peaks
from otel_rl.probes.attributes import memory_attributes
from otel_rl.probes.device import DeviceInUse
from otel_rl.probes.memory import UNREAD, cuda_reader, probes, use_memory_reader
from otel_rl.probes.peaks import Peaks
from otel_rl.process.state import state
from otel_rl.trace.stage import Stage
from tests.fake_cuda import FakeCuda
from tests.fixtures import Recording


class Allocator:
    """The brute force: every number of a caching allocator, with the highest value since the last reset."""

    def __init__(self) -> None:
        self.live: list[int] = []
        self.pool = 0
        self.stats: dict[Any, Any] = {
            "allocated_bytes": {pool: {"current": 0, "peak": 0} for pool in ("all", "small_pool")},
            "reserved_bytes": {"all": {"current": 0, "peak": 0}},
            "oversize_segments": {"current": 0, "peak": 0},
            "reserved_bytes_by_private_pools": {(0, 1): {"all": {"current": 0, "peak": 0}}},
            "num_ooms": 0,
        }

    def nodes(self) -> list[dict[str, int]]:
        stats = self.stats
        return [
            *stats["allocated_bytes"].values(), stats["reserved_bytes"]["all"], stats["oversize_segments"],
            stats["reserved_bytes_by_private_pools"][0, 1]["all"],
        ]  # fmt: skip

    def allocate(self, size: int) -> None:
        self.live.append(size)
        self._count()

    def free(self) -> None:
        if self.live:
            self.live.pop(0)
        self._count()

    def _count(self) -> None:
        total = sum(self.live)
        reserved = max(total, self.stats["reserved_bytes"]["all"]["current"])
        values = [total, sum(size for size in self.live if size < 8), reserved, len(self.live) // 3, total // 2]
        for node, value in zip(self.nodes(), values, strict=True):
            node["current"] = value
            node["peak"] = max(node["peak"], value)

    def reset(self) -> None:
        for node in self.nodes():
            node["peak"] = node["current"]

    def read(self, device: int | None = None) -> dict[Any, Any]:
        pool = self.stats["reserved_bytes_by_private_pools"][0, 1]
        return copy.deepcopy({**self.stats, "reserved_bytes_by_private_pools": {(self.pool, 1): pool}})


class Stages:
    """The open stages, and the highest values that each of them really saw."""

    def __init__(self) -> None:
        self.open: list[tuple[Stage, list[int]]] = []

    def see(self, allocator: Allocator) -> None:
        now = [allocator.stats[name]["all"]["current"] for name in ("allocated_bytes", "reserved_bytes")]
        for _, highest in self.open:
            highest[:] = map(max, highest, now)


operations = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), st.integers(1, 20)),
        st.tuples(st.sampled_from(["free", "read", "reset", "begin", "end"]), st.integers(0, 20)),
    ),
    max_size=60,
)


@given(operations)
@example([("allocate", 9), ("begin", 0), ("free", 0), ("reset", 0), ("read", 0)])
def test_host_and_stages_see_the_truth(done: list[tuple[str, int]]) -> None:
    """Over any sequence of allocations, stages in each other and beside each other, and the host's own resets."""
    ours, alone = Allocator(), Allocator()
    peaks = Peaks(lambda device: ours.read(), lambda device: ours.reset(), lambda: 0)
    stages = Stages()
    for operation, number in done:
        if operation == "allocate":
            ours.allocate(number)
            alone.allocate(number)
        elif operation == "free":
            ours.free()
            alone.free()
        elif operation == "read":
            shown = ours.read()
            peaks.show(0, shown)
            assert alone.read() == shown
        elif operation == "reset":
            peaks.before_reset(0)
            ours.reset()
            peaks.after_reset(0)
            alone.reset()
        elif operation == "begin":
            stages.open.append((Stage("a"), [0, 0]))
            peaks.begin(stages.open[-1][0])
        elif stages.open:
            stage, highest = stages.open.pop(number % len(stages.open))
            peaks.end(stage)
            assert {
                v.ALLOCATED_PEAK: highest[0],
                v.ALLOCATED_PEAK_EXACT: True,
                v.RESERVED_PEAK: highest[1],
                v.RESERVED_PEAK_EXACT: True,
            } == stage.attributes
        stages.see(ours)


@given(operations)
def test_without_resets_a_stage_says_nothing_that_is_not_true(done: list[tuple[str, int]]) -> None:
    """However short it is, and whatever lies between it and the next: what is exact is, and a bound is one."""
    allocator, cuda = Allocator(), FakeCuda()
    cuda.memory.memory_stats_as_nested_dict = allocator.read
    stages, begins = Stages(), {}
    probes.device, probes.read_device = DeviceInUse(cuda), cuda_reader(cuda)
    for operation, number in done:
        if operation == "allocate":
            allocator.allocate(number)
        elif operation == "free":
            allocator.free()
        elif operation == "begin":
            stage = Stage("a", coarse=number % 2 == 0)
            stage.before = stage.after = UNREAD
            probes.device.begin(stage)
            stages.open.append((stage, [0, 0]))
            begins[stage] = allocator.read()
        elif operation == "end" and stages.open:
            stage, highest = stages.open.pop(number % len(stages.open))
            probes.device.end(stage)
            told = memory_attributes(stage.before, stage.after)
            assert begins.pop(stage)["allocated_bytes"]["all"]["current"] == told[v.ALLOCATED_START]
            assert allocator.stats["allocated_bytes"]["all"]["current"] == told[v.ALLOCATED_END]
            keys = (v.ALLOCATED_PEAK, v.ALLOCATED_PEAK_EXACT), (v.RESERVED_PEAK, v.RESERVED_PEAK_EXACT)
            for (peak, exact), true in zip(keys, highest, strict=True):
                assert told[peak] == true if told[exact] else told[peak] <= true
        stages.see(allocator)
    probes.device = probes.read_device = None


def test_short_stages_each_have_their_own_peak(recording: Recording) -> None:
    """Nothing waits for a device: what is allocated within microseconds is not the next stage's."""
    allocator, cuda = Allocator(), FakeCuda()
    cuda.memory.memory_stats_as_nested_dict = allocator.read
    probes.device, probes.read_device = DeviceInUse(cuda), cuda_reader(cuda)
    with otel_rl.step(1):
        with otel_rl.stage("logits"):
            allocator.allocate(100)
            allocator.free()
        allocator.allocate(200)
        allocator.free()
        with otel_rl.stage("loss"):
            allocator.allocate(1)
    found = recording.spans()
    told = [
        (found[name].attributes[v.ALLOCATED_PEAK], found[name].attributes[v.ALLOCATED_PEAK_EXACT])
        for name in ("logits", "loss")
    ]
    assert [(100, True), (1, False)] == told


def test_threads_do_not_take_each_others_peaks() -> None:
    """One begins a stage, which resets, while another one reads the peaks of its own."""
    ours, others = Allocator(), [Stage("other")]

    def stats(device: int) -> dict[Any, Any]:
        if stage.began and others:
            peaks.begin(others.pop())
        return ours.read()

    peaks = Peaks(stats, lambda device: ours.reset(), lambda: 0)
    stage = Stage("mine")
    peaks.begin(stage)
    ours.allocate(100)
    ours.free()
    stage.began = 1
    peaks.end(stage)
    assert 100 == (stage.attributes or {})[v.ALLOCATED_PEAK]


@pytest.mark.parametrize("is_before", [True, False])
def test_a_reset_of_the_hosts_stays_one(is_before: bool) -> None:
    """Another thread begins a stage within it, or it comes within the begin of one."""
    ours, resets = Allocator(), [1]
    ours.allocate(100)
    ours.free()

    def reset(*during: Callable[[], object]) -> None:
        peaks.before_reset(0)
        for one in during:
            one()
        ours.reset()
        peaks.after_reset(0)

    def stats(device: int) -> dict[Any, Any]:
        found = ours.read()
        if not is_before and resets:
            resets.clear()
            reset()
        return found

    peaks = Peaks(stats, lambda device: ours.reset(), lambda: 0)
    if is_before:
        reset(lambda: peaks.begin(Stage("other")))
    else:
        peaks.begin(Stage("other"))
    shown = ours.read()
    peaks.show(0, shown)
    assert 0 == shown["allocated_bytes"]["all"]["peak"]


def test_a_private_pool_that_is_gone_is_forgotten() -> None:
    """Graphs come and go, each with one of its own."""
    ours = Allocator()
    peaks = Peaks(lambda device: ours.read(), lambda device: ours.reset(), lambda: 0)
    for number in range(100):
        ours.pool = number
        stage = Stage("a")
        peaks.begin(stage)
        peaks.end(stage)
    assert len(ours.nodes()) == len(peaks._host[0])


def test_a_stage_has_the_peaks_of_the_device_it_began_on() -> None:
    """Also where another one is current by its end; one that began before the device was in use says nothing."""
    both, index = (Allocator(), Allocator()), [0]
    peaks = Peaks(lambda device: both[device].read(), lambda device: both[device].reset(), lambda: index[0])
    moved, unknown = Stage("a"), Stage("b", {"rl.mode": "train"})
    peaks.begin(moved)
    both[0].allocate(100)
    both[0].free()
    index[0] = 1
    peaks.end(moved)
    peaks.end(unknown)
    assert (100, True) == tuple((moved.attributes or {})[key] for key in (v.ALLOCATED_PEAK, v.ALLOCATED_PEAK_EXACT))
    assert {"rl.mode": "train"} == unknown.attributes


def test_a_device_that_the_process_does_not_use_has_no_peaks() -> None:
    """They would be 0, and called exact."""
    cuda, ours = FakeCuda(), Allocator()
    peaks = Peaks(lambda device: ours.read(), lambda device: ours.reset(), cuda.current_device)
    probes.has_context, stage = lambda index: False, Stage("a")
    stage.before = stage.after = UNREAD
    in_use = DeviceInUse(cuda, peaks)
    in_use.begin(stage)
    in_use.end(stage)
    probes.has_context = None
    assert (None, UNREAD, UNREAD) == (stage.attributes, stage.before, stage.after)


def test_a_device_that_is_lost_loses_no_error_of_ours() -> None:
    """The host hears of it from its own calls."""

    def lost(device: int) -> dict[Any, Any]:
        raise RuntimeError("CUDA error")

    ours = Allocator()
    stage = Stage("a")
    for index in (lambda: 0, lambda: lost(0)):
        broken = Peaks(lost, lost, index)
        broken.begin(stage)
        broken.before_reset(0)
        broken.end(stage)
    peaks = Peaks(lambda device: ours.read() if not ours.live else lost(device), lambda device: None, lambda: 0)
    peaks.begin(stage)
    ours.live.append(1)
    peaks.end(stage)
    assert None is stage.attributes


torch = pytest.importorskip("torch")
NAMES = (
    "_cuda_memoryStats",
    "_cuda_resetPeakMemoryStats",
    "_accelerator_getDeviceStats",
    "_accelerator_resetPeakStats",
)


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    """Torch's own functions over an allocator of the test's."""
    allocator = Allocator()
    for name, function in {
        "_cuda_memoryStats": lambda device: allocator.read(),
        "_cuda_resetPeakMemoryStats": lambda device: allocator.reset(),
        "_accelerator_getDeviceStats": lambda device: allocator.read(),
        "_accelerator_resetPeakStats": lambda device: allocator.reset(),
        "_accelerator_isAllocatorInitialized": lambda: True,
    }.items():
        monkeypatch.setattr(torch._C, name, function, raising=False)
    monkeypatch.setattr(torch.cuda.memory, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    return allocator


def readings() -> list[Any]:
    """Everything by which a program reads a peak."""
    return [
        torch.cuda.max_memory_allocated(0),
        torch.cuda.max_memory_reserved(0),
        torch.cuda.memory_stats(0)["allocated_bytes.all.peak"],
        torch.cuda.memory_stats(0)["reserved_bytes_by_private_pools.0_1.all.peak"],
        torch.cuda.memory_stats_as_nested_dict(0),
        torch.cuda.memory_allocated(0),
        torch._C._accelerator_getDeviceStats(0),
    ]


def test_torch_tells_true_peaks_while_they_are_reset(recording: Recording, allocator: Allocator) -> None:
    """By each of its functions; and afterwards each of them is what it was."""
    before = [getattr(torch._C, name) for name in NAMES]
    state.config = replace(state.config, memory_peak="exact")
    peaks, undo = exact_peaks("cuda", torch.cuda)
    assert peaks is not None
    allocator.allocate(10)
    allocator.free()
    expected = readings()
    stage = Stage("a")
    peaks.begin(stage)
    allocator.allocate(9)
    allocator.free()
    raw = allocator.read()["allocated_bytes"]["all"]["peak"]
    seen = readings()
    peaks.end(stage)
    assert (9, expected, 9) == (raw, seen, stage.attributes and stage.attributes[v.ALLOCATED_PEAK])
    for reset in (torch.cuda.reset_peak_memory_stats, torch._C._accelerator_resetPeakStats):
        allocator.allocate(20)
        peaks.begin(Stage("b"))
        allocator.free()
        reset(0)
        assert 0 == torch.cuda.max_memory_allocated(0)
    undo()
    assert before == [getattr(torch._C, name) for name in NAMES]


@pytest.mark.usefixtures("recording")
def test_nothing_is_replaced_unless_it_is_asked_for(allocator: Allocator) -> None:
    """Peaks are bounded by default."""
    before = torch._C._cuda_memoryStats
    peaks, undo = exact_peaks("cuda", torch.cuda)
    undo()
    assert (None, before) == (peaks, torch._C._cuda_memoryStats)


def test_without_torchs_functions_nothing_is_reset(monkeypatch: pytest.MonkeyPatch, recording: Recording) -> None:
    """A build of torch that has none, or another name for them."""
    state.config = replace(state.config, memory_peak="exact")
    monkeypatch.delattr(torch._C, "_cuda_resetPeakMemoryStats", raising=False)
    assert None is exact_peaks("cuda", torch.cuda)[0]


def test_a_span_says_the_peak_of_its_stage(recording: Recording) -> None:
    """Of each one, also inside others, whatever the process's own peak is."""
    ours, cuda = Allocator(), FakeCuda()
    cuda.memory.memory_stats_as_nested_dict = ours.read
    peaks = Peaks(lambda device: ours.read(), lambda device: ours.reset(), lambda: 0)
    probes.device = DeviceInUse(cuda, peaks)
    use_memory_reader(cuda_reader(cuda))
    ours.allocate(100)
    ours.free()
    with otel_rl.step(1), otel_rl.stage("train"):
        ours.allocate(10)
        with otel_rl.stage("train.forward"):
            ours.allocate(20)
            ours.free()
        with otel_rl.stage("train.backward"):
            ours.allocate(5)
        ours.free()
    found = {name: span.attributes.get(v.ALLOCATED_PEAK) for name, span in recording.spans().items()}
    assert {v.TRAIN: 30, v.FORWARD: 30, v.BACKWARD: 25} == {
        name: peak for name, peak in found.items() if name in (v.TRAIN, v.FORWARD, v.BACKWARD)
    }


@pytest.mark.gpu
def test_a_real_allocator() -> None:
    """Each stage has its own peak, and torch tells the one of all."""
    if not torch.cuda.is_available():
        pytest.skip("no device")
    torch.cuda.init()
    state.on = True
    state.config = Config(memory_peak="exact")
    peaks, undo = exact_peaks("cuda", torch.cuda)
    assert peaks is not None
    try:
        found = []
        torch.cuda.reset_peak_memory_stats()
        for size in (64 << 20, 8 << 20):
            stage = Stage("a")
            base = torch.cuda.memory_allocated()
            peaks.begin(stage)
            tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
            del tensor
            peaks.end(stage)
            found.append(stage.attributes[v.ALLOCATED_PEAK] - base)
        assert [64 << 20, 8 << 20] == found
        assert base + (64 << 20) == torch.cuda.max_memory_allocated()
    finally:
        undo()
        state.reset()


def test_a_setting_switches_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """And ``uninstrument()`` leaves torch as it was."""
    monkeypatch.setenv("OTEL_RL_MEMORY_PEAK", "exact")
    names = [name for name in NAMES if hasattr(torch._C, name)]
    before = [getattr(torch._C, name) for name in names]
    otel_rl.instrument(["torch"])
    during = [getattr(torch._C, name) for name in names]
    expected = torch.cuda.memory_stats()
    otel_rl.uninstrument()
    assert {} == expected
    assert before == [getattr(torch._C, name) for name in names]
    assert len(names) == sum(one is not other for one, other in zip(before, during, strict=True))
