"""What the sidecar reads of Ascend's devices, with a library that stands in: compiled, with the real prototypes."""

from __future__ import annotations

import subprocess
from ctypes import CDLL, c_int
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from otel_rl import vocabulary as v
from otel_rl.probes.ascend import AGAIN, AscendProbe
from otel_rl.probes.sample import Sample

pytestmark = pytest.mark.skipif(which("cc") is None, reason="no C compiler")
SOURCE = Path(__file__).with_name("dcmi.c")
TRAINING, INFERENCE = "NPU-42C711D4-20B03704-4A10C8D4-14CC040A-D2102003", "NPU-5-0"


@pytest.fixture
def library(tmp_path: Path) -> Any:
    """Compile and load it: each test has its own."""
    path = tmp_path / "libdcmi.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(path), str(SOURCE)], check=True)
    return CDLL(str(path))


def numbers(samples: list[Sample]) -> dict[tuple[str, ...], float]:
    """Return values by device, name and further labels."""
    return {(one.labels[0][1], one.name, *(value for _, value in one.labels[3:])): one.value for one in samples}


def test_devices_say_what_they_can(library: Any) -> None:
    """In our units; what a board does not support is left out, and its cores stand for all of it."""
    probe = AscendProbe(lambda path: library)
    samples = list(probe.read())
    assert {
        (TRAINING, v.GPU_UTILIZATION): 0.87,
        (TRAINING, v.GPU_MEMORY): 3384 << 20,
        (TRAINING, v.GPU_MEMORY_LIMIT): 65536 << 20,
        (TRAINING, v.POWER): 93.5,
        (TRAINING, v.TEMPERATURE): 46,
        (TRAINING, v.HW_ERRORS, "corrected"): 0,
        (TRAINING, v.HW_ERRORS, "uncorrected"): 0,
        (TRAINING, v.HW_STATUS, "ok"): 1,
        (TRAINING, v.HW_STATUS, "failed"): 0,
        (INFERENCE, v.GPU_UTILIZATION): 0.31,
        (INFERENCE, v.TEMPERATURE): 46,
        (INFERENCE, v.HW_STATUS, "ok"): 1,
        (INFERENCE, v.HW_STATUS, "failed"): 0,
    } == numbers(samples)
    assert {("Ascend 910B3", "gpu"), ("Ascend 310P3", "gpu")} == {(a.labels[1][1], a.labels[2][1]) for a in samples}
    first = c_int.in_dll(library, "calls").value
    again = numbers(list(probe.read()))
    assert numbers(samples) == again
    assert c_int.in_dll(library, "calls").value - first == 9  # what is not supported is not asked for again


def test_errors_count_from_the_sidecars_begin_on(library: Any) -> None:
    """And a device with an urgent alarm has failed."""
    probe = AscendProbe(lambda path: library)
    list(probe.read())
    c_int.in_dll(library, "double_bits").value, c_int.in_dll(library, "alarm_level").value = 3, 3
    found = numbers(list(probe.read()))
    assert (2, 0) == (found[TRAINING, v.HW_ERRORS, "uncorrected"], found[TRAINING, v.HW_STATUS, "ok"])
    c_int.in_dll(library, "alarm_level").value = 2
    assert 1 == numbers(list(probe.read()))[TRAINING, v.HW_STATUS, "ok"]


def test_a_device_that_is_gone_says_that_it_failed(library: Any) -> None:
    """And comes back."""
    probe = AscendProbe(lambda path: library)
    before = numbers(list(probe.read()))
    c_int.in_dll(library, "is_gone").value = 1
    gone = {(device, v.HW_STATUS, state): state == "failed" for device in (TRAINING, INFERENCE) for state in STATES}
    assert gone == numbers(list(probe.read()))
    c_int.in_dll(library, "is_gone").value = 0
    assert before == numbers(list(probe.read()))


STATES = "ok", "failed"


def test_without_a_driver_there_is_nothing() -> None:
    """It is looked for again, and not too often."""
    loads: list[str] = []

    def load(path: str) -> Any:
        loads.append(path)
        raise OSError(path)

    probe = AscendProbe(load)
    for _ in range(AGAIN + 1):
        assert [] == list(probe.read())
    assert ["libdcmi.so", "/usr/local/dcmi/libdcmi.so"] * 2 == loads


def test_a_library_that_lacks_functions_says_the_rest(library: Any) -> None:
    """As older ones do."""

    class Older:
        def __getattr__(self, name: str) -> Any:
            if "ecc" in name or "health" in name or "die" in name:
                raise AttributeError(name)
            return getattr(library, name)

    found = numbers(list(AscendProbe(lambda path: Older()).read()))
    assert {"NPU-0-0", INFERENCE} == {device for device, *_ in found}
    assert {v.GPU_UTILIZATION, v.GPU_MEMORY, v.GPU_MEMORY_LIMIT, v.POWER, v.TEMPERATURE} == {
        name for _, name, *_ in found
    }
