"""Tests of what the sidecar reads of NVIDIA's devices, with a driver that stands in behind the real pynvml."""

from __future__ import annotations

import itertools
import sys

import pynvml
import pytest

from otel_rl import vocabulary as v
from otel_rl.probes import gpm
from otel_rl.probes.nvidia import AGAIN, NvidiaProbe
from otel_rl.probes.sample import Sample, SampleLabels
from tests.nvml import GIB, NAME, Driver

WORDS = (
    "power_cap", "thermal_software", "thermal_hardware", "power_brake", "hardware", "sync_boost", "application", "other"
)  # fmt: skip
FIRST_CALLS = {
    "nvmlDeviceGetUtilizationRates": 1,
    "nvmlDeviceGetMemoryInfo": 1,
    "nvmlDeviceGetPowerUsage": 1,
    "nvmlDeviceGetTotalEnergyConsumption": 1,
    "nvmlDeviceGetTemperature": 1,
    "nvmlDeviceGetClockInfo": 2,
    "nvmlDeviceGetCurrentClocksEventReasons": 1,
    "nvmlDeviceGetTotalEccErrors": 2,
    "nvmlDeviceGetFieldValues": 1,
    "nvmlGpmSampleGet": 1,
    "nvmlGpmMetricsGet": 1,
    "nvmlEventSetWait_v2": 1,
}
"""Of one device, from its second reading on."""


def labels(device: int = 1) -> SampleLabels:
    """Of a whole device."""
    return ((v.HW_ID, f"GPU-{device}"), (v.HW_NAME, NAME.decode()), (v.HW_TYPE, "gpu"))


def read(probe: NvidiaProbe) -> list[Sample]:
    """One reading."""
    return list(probe.read())


def values(samples: list[Sample], name: str) -> list[float]:
    """All values of one metric."""
    return [sample.value for sample in samples if sample.name == name]


def status(samples: list[Sample]) -> dict[str, str]:
    """Which state every device is in."""
    rows = [sample for sample in samples if sample.name == v.HW_STATUS and sample.value]
    return {row.labels[0][1]: row.labels[-1][1] for row in rows}


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """A driver with one device; between two readings lie 5 s."""
    monkeypatch.setattr(gpm, "monotonic", itertools.count(step=5).__next__)
    return Driver().install(monkeypatch)


def test_a_device_is_sampled_in_our_units(driver: Driver) -> None:
    """Ratios, bytes, watts, joules, degrees and hertz; counters from the first reading on, activity from the second."""
    probe, own = NvidiaProbe(), labels()
    read(probe)
    driver.energy += 2_500_000
    driver.fields = {197: 5_400, 198: 6_000, 138: 12, 139: 21}
    driver.ecc = [9, 1]

    def io(link: str, direction: str, count: int) -> Sample:
        return Sample(v.GPU_IO, count, (*own, (v.LINK, link), (v.NETWORK_DIRECTION, direction)))

    assert [
        Sample(v.GPU_UTILIZATION, 0.87, own),
        Sample(v.GPU_MEMORY, 60 * GIB, own),
        Sample(v.GPU_MEMORY_LIMIT, 80 * GIB, own),
        Sample(v.POWER, 612.5, own),
        Sample(v.ENERGY, 2500.0, own),
        Sample(v.TEMPERATURE, 63, own),
        Sample(v.HW_CLOCK, 1_980_000_000, (*own, (v.CLOCK_TYPE, "sm"))),
        Sample(v.HW_CLOCK, 2_619_000_000, (*own, (v.CLOCK_TYPE, "memory"))),
        *(Sample(v.THROTTLE, int(word == "power_cap"), (*own, (v.THROTTLE_REASON, word))) for word in WORDS),
        Sample(v.HW_ERRORS, 2, (*own, (v.ERROR_TYPE, "corrected"))),
        Sample(v.HW_ERRORS, 1, (*own, (v.ERROR_TYPE, "uncorrected"))),
        io("pcie", "receive", 0),
        io("pcie", "transmit", 400),
        io("nvlink", "receive", 1024),
        io("nvlink", "transmit", 2048),
        Sample(v.SM_ACTIVITY, 0.75, own),
        Sample(v.TENSOR_ACTIVITY, 0.5, own),
        Sample(v.DRAM_UTILIZATION, 0.25, own),
        Sample(v.HW_STATUS, 1, (*own, (v.HW_STATE, "ok"))),
        Sample(v.HW_STATUS, 0, (*own, (v.HW_STATE, "failed"))),
    ] == read(probe)


def test_a_reading_costs_so_many_calls(driver: Driver) -> None:
    """Each of the driver once; with eight devices eight times as many, but for the one look for events."""
    probe = NvidiaProbe()
    read(probe)
    driver.calls.clear()
    read(probe)
    assert FIRST_CALLS == dict(driver.calls)
    probe.close()
    driver.devices = 8
    read(probe)
    driver.calls.clear()
    read(probe)
    once = "nvmlEventSetWait_v2"
    assert {name: count * (1 if name == once else 8) for name, count in FIRST_CALLS.items()} == dict(driver.calls)


def test_reasons_of_a_low_clock(driver: Driver) -> None:
    """Several at once; idling and a display hold nobody down; a reason that came with a newer driver is another one."""
    driver.reasons = (
        pynvml.nvmlClocksEventReasonHwSlowdown
        | pynvml.nvmlClocksEventReasonHwThermalSlowdown
        | pynvml.nvmlClocksEventReasonGpuIdle
    )
    probe = NvidiaProbe()
    assert [0, 0, 1, 0, 1, 0, 0, 0] == values(read(probe), v.THROTTLE)
    driver.reasons = pynvml.nvmlClocksEventReasonDisplayClockSetting
    assert [0] * 8 == values(read(probe), v.THROTTLE)
    driver.reasons = 1 << 20
    assert [*[0] * 7, 1] == values(read(probe), v.THROTTLE)


def test_what_a_driver_lacks_is_asked_once(driver: Driver) -> None:
    """A function that its library does not have, one that does not support the device or the user."""
    driver.missing = {"nvmlDeviceGetTotalEnergyConsumption", "nvmlGpmQueryDeviceSupport"}
    driver.fails = {
        "nvmlDeviceGetTotalEccErrors": pynvml.NVML_ERROR_NOT_SUPPORTED,
        "nvmlDeviceGetPowerUsage": pynvml.NVML_ERROR_NO_PERMISSION,
        "nvmlDeviceGetTemperature": pynvml.NVML_ERROR_UNKNOWN,
    }
    probe = NvidiaProbe()
    first = read(probe)
    assert {v.ENERGY, v.HW_ERRORS, v.POWER, v.SM_ACTIVITY, v.TEMPERATURE}.isdisjoint(sample.name for sample in first)
    driver.fails.clear()
    driver.missing.clear()
    assert len(first) + 1 == len(read(probe))  # what may pass is asked again
    asked = ("nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetTemperature")
    assert [2, 1, 2] == [driver.calls[name] for name in asked]


def test_a_driver_without_events_tells_the_other_numbers(driver: Driver) -> None:
    """As in a virtual machine."""
    driver.fails["nvmlEventSetCreate"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    assert [0.87] == values(read(NvidiaProbe()), v.GPU_UTILIZATION)


def test_gpm_is_for_devices_that_have_it(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> None:
    """Elsewhere there is the utilization alone, under its own name; a metric that is not answered is left out."""

    def without(self: Driver, device: object, support: object) -> None:
        """An A100."""

    monkeypatch.setattr(Driver, "_nvmlGpmQueryDeviceSupport", without)
    probe = NvidiaProbe()
    read(probe)
    names = {sample.name for sample in read(probe)}
    assert v.GPU_UTILIZATION in names
    assert {v.SM_ACTIVITY, v.TENSOR_ACTIVITY, v.DRAM_UTILIZATION}.isdisjoint(names)
    assert 1 == driver.calls["nvmlGpmQueryDeviceSupport"]


def test_two_readings_at_once_are_too_near_for_gpm(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> None:
    """The last one of the sidecar's comes when it ends; snapshots must lie 100 ms apart."""
    monkeypatch.setattr(gpm, "monotonic", iter([1.0, 1.099, 1.1]).__next__)
    probe = NvidiaProbe()
    assert [[], [], [0.75]] == [values(read(probe), v.SM_ACTIVITY) for _ in range(3)]


def test_a_metric_of_gpm_that_fails_is_left_out(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> None:
    """The others are there; what is no number is none."""
    answer = Driver._nvmlGpmMetricsGet

    def partly(self: Driver, request: object) -> None:
        answer(self, request)
        request._obj.metrics[0].nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED  # type: ignore[attr-defined]
        request._obj.metrics[2].value = float("nan")  # type: ignore[attr-defined]

    monkeypatch.setattr(Driver, "_nvmlGpmMetricsGet", partly)
    probe = NvidiaProbe()
    read(probe)
    found = read(probe)
    assert [[], [0.5], []] == [values(found, name) for name in (v.SM_ACTIVITY, v.TENSOR_ACTIVITY, v.DRAM_UTILIZATION)]


def test_bytes_of_other_generations(driver: Driver) -> None:
    """The fifth NVLink has other fields; a device that counts no bytes of PCIe tells a rate, under its own name."""
    driver.fields = {202: 2_000, 204: 4_000}
    probe = NvidiaProbe()
    read(probe)
    driver.fields = {202: 2_100, 204: 4_300}
    driver.calls.clear()
    found = read(probe)
    assert [300, 100] == values(found, v.GPU_IO)
    assert {"nvlink"} == {dict(sample.labels)[v.LINK] for sample in found if sample.name == v.GPU_IO}
    rates = {dict(row.labels)[v.NETWORK_DIRECTION]: row.value for row in found if row.name == v.PCIE_THROUGHPUT}
    assert {"receive": 400_000, "transmit": 300_000} == rates
    assert 2 == driver.calls["nvmlDeviceGetPcieThroughput"]


def test_a_counter_of_bytes_in_32_bits_is_none(driver: Driver) -> None:
    """It begins anew within a period, nobody knows how often; the rate is told instead."""
    driver.fields = {197: 2**32 - 1000, 198: 2**32 - 1000}
    driver.types = dict.fromkeys(driver.fields, pynvml.NVML_VALUE_TYPE_UNSIGNED_INT)
    probe = NvidiaProbe()
    read(probe)
    driver.fields = {197: 500, 198: 500}
    found = read(probe)
    assert ([], [400_000, 300_000]) == (values(found, v.GPU_IO), values(found, v.PCIE_THROUGHPUT))


def test_of_two_counters_for_the_same_the_one_counts_that_answers(driver: Driver) -> None:
    """From then on it alone: the other one has counted from elsewhere."""
    driver.fields, driver.unknown = {138: 1, 139: 2, 202: 2_000, 204: 4_000}, {138, 139}
    probe = NvidiaProbe()
    found = [values(read(probe), v.GPU_IO)]
    driver.fields, driver.unknown = {138: 1, 139: 2, 202: 2_100, 204: 4_300}, set()
    found.append(values(read(probe), v.GPU_IO))
    driver.fields, driver.unknown = {138: 1, 139: 2}, {138, 139}
    other = NvidiaProbe()
    found.append(values(read(other), v.GPU_IO))
    driver.fields |= {202: 5, 204: 6}
    driver.unknown = set()
    found += values(read(other), v.GPU_IO), values(read(other), v.GPU_IO)
    assert [[0, 0], [300, 100], [], [0, 0], [0, 0]] == found


def test_critical_errors_are_counted_by_number(driver: Driver) -> None:
    """All that happened, without waiting; beyond 64 numbers they are others."""
    driver.devices = 2
    probe = NvidiaProbe()
    assert [] == values(read(probe), v.XID)
    assert {1, 2} == driver.watched
    driver.events = [(1, 79), (2, 31), (2, 31)]

    def counts() -> dict[tuple[str, str], float]:
        rows = [row for row in read(probe) if row.name == v.XID]
        return {(row.labels[0][1], row.labels[-1][1]): row.value for row in rows}

    assert {("GPU-1", "79"): 1, ("GPU-2", "31"): 2} == counts()
    assert {("GPU-1", "79"): 1, ("GPU-2", "31"): 2} == counts()
    driver.events = [(1, code) for code in range(100, 200)]
    assert {"31", "79", "other", *map(str, range(100, 162))} == {code for _, code in counts()}
    assert 38 == counts()["GPU-1", "other"]


def test_a_device_that_vanishes_takes_no_other_with_it(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    """It is said and counted as failed, asked no more, and looked for again after a while; the others go on."""
    driver.devices = 2
    probe = NvidiaProbe()
    read(probe)
    driver.lost = {1}
    driver.calls.clear()
    found = read(probe)
    assert [0.87] == values(found, v.GPU_UTILIZATION)
    assert {"GPU-1": "failed", "GPU-2": "ok"} == status(found)
    driver.calls.clear()
    read(probe)
    assert 1 == driver.calls["nvmlDeviceGetUtilizationRates"]
    for _ in range(2 * AGAIN):
        assert {"GPU-1": "failed", "GPU-2": "ok"} == status(read(probe))
    assert 2 == driver.calls["nvmlInitWithFlags"]
    driver.lost.clear()
    driver.energy += 1000
    for _ in range(AGAIN):
        found = read(probe)
    assert {"GPU-1": "ok", "GPU-2": "ok"} == status(found)
    assert [1.0, 1.0] == values(found, v.ENERGY)
    assert [
        f"device GPU-1 ({NAME.decode()}) does not respond",
        f"device GPU-1 ({NAME.decode()}) responds again",
    ] == [record.getMessage() for record in caplog.records]


def test_a_device_may_vanish_in_any_call(driver: Driver) -> None:
    """Whichever it is, the other device's numbers are there and nothing is raised."""
    driver.devices = 2
    probe = NvidiaProbe()
    read(probe)
    expected = len(read(probe)) // 2
    for name in set(FIRST_CALLS) - {"nvmlEventSetWait_v2", "nvmlGpmMetricsGet"}:
        probe = NvidiaProbe()
        read(probe)
        driver.fails = {(name, 1): pynvml.NVML_ERROR_GPU_IS_LOST}
        found = read(probe)
        assert {"GPU-1": "failed", "GPU-2": "ok"} == status(found)
        assert expected == len([sample for sample in found if sample.labels[0][1] == "GPU-2"])
        driver.fails.clear()
        probe.close()


def test_a_device_that_answers_nothing_has_failed(driver: Driver) -> None:
    """One that has fallen off the bus often says no more than that."""
    driver.devices = 2
    probe = NvidiaProbe()
    read(probe)
    driver.fails = {(name, 1): pynvml.NVML_ERROR_UNKNOWN for name in FIRST_CALLS}
    driver.fails["nvmlDeviceGetTemperature", 1] = pynvml.NVML_ERROR_NOT_SUPPORTED
    assert {"GPU-1": "failed", "GPU-2": "ok"} == status(read(probe))
    driver.is_cut = True
    driver.fails = {("nvmlDeviceGetPowerUsage", 1): pynvml.NVML_ERROR_UNKNOWN}
    driver.fails |= {(name, 101): pynvml.NVML_ERROR_UNKNOWN for name in ("nvmlDeviceGetMemoryInfo", *FIRST_CALLS)}
    for _ in range(AGAIN):
        found = read(probe)
    assert {"GPU-1": "ok", "GPU-2": "ok"} == status(found)


@pytest.mark.parametrize("name", ["nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetMigMode"])
def test_an_error_at_the_begin_may_pass(driver: Driver, name: str) -> None:
    """The device, and what it is cut into, is looked for again."""
    driver.devices, driver.is_cut = 2, True
    expected = len(values(read(NvidiaProbe()), v.GPU_MEMORY))
    driver.fails = {(name, 1): pynvml.NVML_ERROR_TIMEOUT}
    probe = NvidiaProbe()
    fewer = len(values(read(probe), v.GPU_MEMORY))
    driver.fails.clear()
    for _ in range(AGAIN):
        found = read(probe)
    assert fewer < expected == len(values(found, v.GPU_MEMORY))


def test_one_that_is_lost_from_the_begin_is_looked_for(driver: Driver) -> None:
    """Its id is not known before it answers."""
    driver.devices, driver.lost = 2, {2}
    probe = NvidiaProbe()
    assert {"GPU-1": "ok"} == status(read(probe))
    driver.lost.clear()
    for _ in range(AGAIN):
        found = read(probe)
    assert {"GPU-1": "ok", "GPU-2": "ok"} == status(found)


def test_a_driver_that_is_restarted(driver: Driver) -> None:
    """One reading is lost; counters that begin anew go on from where they were."""
    probe = NvidiaProbe()
    read(probe)
    driver.energy += 4000
    assert [4.0] == values(read(probe), v.ENERGY)
    driver.restart()
    assert {"GPU-1": "failed"} == status(read(probe))
    driver.energy = 1000
    found = read(probe)
    assert [5.0] == values(found, v.ENERGY)
    assert {"GPU-1": "ok"} == status(found)


def test_a_driver_that_fails_and_comes_back(driver: Driver) -> None:
    """It is asked again after a while, not every time."""
    driver.fails["nvmlInitWithFlags"] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    probe = NvidiaProbe()
    assert [] == [sample for _ in range(AGAIN) for sample in read(probe)]
    assert 1 == driver.calls["nvmlInitWithFlags"]
    driver.fails.clear()
    assert {"GPU-1": "ok"} == status(read(probe))


def test_a_driver_that_begins_and_then_fails(driver: Driver) -> None:
    """Its session is ended."""
    driver.fails["nvmlDeviceGetCount_v2"] = pynvml.NVML_ERROR_UNKNOWN
    assert [] == read(NvidiaProbe())
    assert not driver.is_begun


def test_no_driver_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing, whether its library is missing or nvidia-ml-py is."""
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "CDLL", _no_library)
    assert [] == read(NvidiaProbe())
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert [] == read(NvidiaProbe())


def _no_library(name: str) -> None:
    raise OSError(name)


def test_parts_of_a_device(driver: Driver) -> None:
    """Memory and activity are each part's own; the whole says what only it knows."""
    driver.is_cut = True
    probe = NvidiaProbe()
    read(probe)
    found = read(probe)
    parts = {sample.labels for sample in found if sample.name == v.SM_ACTIVITY}
    name = NAME.decode() + " MIG 1g.10gb"
    own = [
        ((v.HW_ID, f"MIG-{part}"), (v.HW_NAME, name), (v.HW_TYPE, "gpu"), (v.HW_PARENT, "GPU-1")) for part in (101, 103)
    ]
    assert set(own) == parts
    assert [80 * GIB, 10 * GIB, 10 * GIB] == values(found, v.GPU_MEMORY_LIMIT)
    assert [612.5] == values(found, v.POWER)
    assert [] == values(found, v.GPU_UTILIZATION)
    driver.lost = {1}
    assert {"GPU-1": "failed"} == status(read(probe))


def test_a_part_that_is_not_ours_hides_no_other(driver: Driver) -> None:
    """A container may be let see some."""
    driver.is_cut = True
    driver.fails = {("nvmlDeviceGetUUID", 101): pynvml.NVML_ERROR_NO_PERMISSION}
    parts = {dict(sample.labels)[v.HW_ID] for sample in read(NvidiaProbe())}
    assert {"GPU-1", "MIG-103"} == parts


def test_an_old_package_of_that_name_leaves_no_session(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """``pynvml`` 11 knows no GPM; the sampler says so once."""
    monkeypatch.delattr(pynvml, "c_nvmlGpmMetricsGet_t")
    with pytest.raises(AttributeError):
        read(NvidiaProbe())
    assert not driver.is_begun


def test_what_was_taken_is_given_back(driver: Driver) -> None:
    """Snapshots, events and the session; and the probe can go on afterwards."""
    probe = NvidiaProbe()
    read(probe)
    assert (2, {1}, True) == (len(driver.taken), driver.watched, driver.is_begun)
    probe.close()
    assert ([], set(), False) == (driver.taken, driver.watched, driver.is_begun)
    assert {"GPU-1": "ok"} == status(read(probe))


@pytest.mark.gpu
def test_a_gpu_is_sampled() -> None:
    """The real thing: two readings, a second of work between them; every number can be."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU")
    probe = NvidiaProbe()
    read(probe)
    matrix = torch.ones(4096, 4096, device="cuda")
    for _ in range(100):
        matrix = matrix @ matrix * 1e-4
    torch.cuda.synchronize()
    found = {sample.name: sample.value for sample in read(probe)}
    assert {v.GPU_UTILIZATION, v.GPU_MEMORY, v.GPU_MEMORY_LIMIT, v.TEMPERATURE, v.HW_STATUS} <= set(found)
    assert set(v.METRICS) >= set(found)
    ratios = {v.GPU_UTILIZATION, v.SM_ACTIVITY, v.TENSOR_ACTIVITY, v.DRAM_UTILIZATION} & set(found)
    assert all(0 <= found[name] <= 1 for name in ratios)
    assert found.get(v.ENERGY, 0) >= 0
    if torch.cuda.get_device_capability() >= (9, 0):
        assert v.SM_ACTIVITY in found
    probe.close()
