"""Ascend devices (NPUs) by DCMI, the driver's library; what a device cannot say is left out.

Source: the DCMI reference of Ascend 910B and 910_93, and ``dcmi_interface_api.h``. DCMI gives percent, MiB and 0.1 W;
we give ratios, bytes and W. Not run on a device so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from ctypes import CDLL, Structure, byref, c_char, c_int, c_uint, c_ulonglong
from dataclasses import dataclass
from typing import Any, Final

from otel_rl import vocabulary
from otel_rl.probes.sample import Sample, SampleLabels, Totals

LIBRARIES: Final = "libdcmi.so", "/usr/local/dcmi/libdcmi.so"
AGAIN: Final = 12
"""After so many readings a driver that was not there is looked for again."""
MOST_CARDS: Final = 64
VDIE, HBM = 1, 2
WHOLE, AI_CORE = 13, 2
"""What a share of use is of; older drivers know that of the cores only."""
URGENT: Final = 3
"""From this level of its alarms on a device does not work."""
NEVER: Final = (-8255, -8013, -8002)
"""The device cannot say it, or not in a container, or not to this user."""
MIB: Final = 1 << 20


class DcmiError(Exception):
    """A function of the library that failed."""

    def __init__(self, code: int) -> None:
        super().__init__(f"DCMI returned {code}")
        self.code = code


class ChipInfo(Structure):
    """``struct dcmi_chip_info``."""

    _fields_ = (("kind", c_char * 32), ("name", c_char * 32), ("version", c_char * 32), ("cores", c_uint))


class DieId(Structure):
    """``struct dcmi_die_id``."""

    _fields_ = (("words", c_uint * 5),)


class HbmInfo(Structure):
    """``struct dcmi_hbm_info``."""

    _fields_ = (
        ("total", c_ulonglong), ("frequency", c_uint), ("used", c_ulonglong), ("temperature", c_int), ("use", c_uint),
    )  # fmt: skip


class EccInfo(Structure):
    """``struct dcmi_ecc_info``."""

    _fields_ = (
        ("is_on", c_int), ("single", c_uint), ("double", c_uint), ("all_single", c_uint), ("all_double", c_uint),
        ("single_pages", c_uint), ("double_pages", c_uint),
    )  # fmt: skip


@dataclass(frozen=True)
class AscendDevice:
    """One NPU: a chip of a card."""

    dcmi: Any
    card: int
    number: int
    labels: SampleLabels
    totals: Totals

    def ask(self, function: str, *arguments: Any) -> None:
        """Call a function of this device.

        Raises:
            DcmiError: it failed.
            AttributeError: this driver has no such function.
        """
        call(self.dcmi, function, self.card, self.number, *arguments)

    def number_of(self, function: str, *arguments: Any, kind: Any = c_uint) -> int:
        found = kind()
        self.ask(function, *arguments, byref(found))
        return int(found.value)


def call(dcmi: Any, function: str, *arguments: Any) -> None:
    code = getattr(dcmi, function)(*arguments)
    if code:
        raise DcmiError(code)


# --- questions --------------------------------------------------------------------------------------------------------


def utilization(device: AscendDevice) -> list[Sample]:
    try:
        percent = device.number_of("dcmi_get_device_utilization_rate", WHOLE)
    except DcmiError:
        percent = device.number_of("dcmi_get_device_utilization_rate", AI_CORE)
    return [Sample(vocabulary.GPU_UTILIZATION, percent / 100, device.labels)]


def memory(device: AscendDevice) -> list[Sample]:
    info = HbmInfo()
    device.ask("dcmi_get_device_hbm_info", byref(info))
    return [
        Sample(vocabulary.GPU_MEMORY, info.used * MIB, device.labels),
        Sample(vocabulary.GPU_MEMORY_LIMIT, info.total * MIB, device.labels),
    ]


def power(device: AscendDevice) -> list[Sample]:
    return [Sample(vocabulary.POWER, device.number_of("dcmi_get_device_power_info", kind=c_int) / 10, device.labels)]


def temperature(device: AscendDevice) -> list[Sample]:
    degrees = device.number_of("dcmi_get_device_temperature", kind=c_int)
    return [Sample(vocabulary.TEMPERATURE, degrees, device.labels)]


def errors(device: AscendDevice) -> list[Sample]:
    info = EccInfo()
    device.ask("dcmi_get_device_ecc_info", HBM, byref(info))
    return [
        device.totals.sample(vocabulary.HW_ERRORS, count, (*device.labels, (vocabulary.ERROR_TYPE, kind)))
        for kind, count in (("corrected", info.single), ("uncorrected", info.double))
    ]


def health(device: AscendDevice) -> list[Sample]:
    try:
        is_well = device.number_of("dcmi_get_device_health") < URGENT
    except DcmiError as error:
        if error.code in NEVER:
            raise
        is_well = False
    return [
        Sample(vocabulary.HW_STATUS, int(is_state), (*device.labels, (vocabulary.HW_STATE, state)))
        for state, is_state in (("ok", is_well), ("failed", not is_well))
    ]


QUESTIONS: Final = (utilization, memory, power, temperature, errors, health)
Asked = list[Callable[[AscendDevice], list[Sample]]]


# --- devices ----------------------------------------------------------------------------------------------------------


class AscendProbe:
    """All NPUs of the driver."""

    name = "ascend"

    def __init__(self, load: Callable[[str], Any] = CDLL) -> None:
        self._load = load
        self._devices: list[tuple[AscendDevice, Asked]] = []
        self._totals = Totals()
        self._wait = 0

    def read(self) -> Iterator[Sample]:
        """Sample every device."""
        if not self._devices:
            self._wait -= 1
            if self._wait > 0:
                return
            self._wait = AGAIN
            self._devices = [(device, list(QUESTIONS)) for device in self._find()]
        for device, questions in self._devices:
            for question in tuple(questions):
                try:
                    yield from question(device)
                except AttributeError:
                    questions.remove(question)
                except DcmiError as error:
                    if error.code in NEVER:
                        questions.remove(question)

    def close(self) -> None:
        """Forget the devices; the library has no end."""
        self._devices, self._wait = [], 0

    def _find(self) -> Iterator[AscendDevice]:
        dcmi = self._open()
        if dcmi is None:
            return
        count, cards = c_int(), (c_int * MOST_CARDS)()
        try:
            call(dcmi, "dcmi_init")
            call(dcmi, "dcmi_get_card_list", byref(count), cards, MOST_CARDS)
        except (AttributeError, DcmiError):
            return
        for card in cards[: count.value]:
            most, controller, processor = c_int(), c_int(), c_int()
            try:
                call(dcmi, "dcmi_get_device_id_in_card", card, byref(most), byref(controller), byref(processor))
            except (AttributeError, DcmiError):
                continue
            for number in range(most.value):
                yield AscendDevice(dcmi, card, number, _labels(dcmi, card, number), self._totals)

    def _open(self) -> Any:
        for path in LIBRARIES:
            try:
                return self._load(path)
            except OSError:
                continue
        return None


def _labels(dcmi: Any, card: int, number: int) -> SampleLabels:
    """Name a device by its die, as ``npu-smi`` does, or else by its place in this node."""
    die, chip = DieId(), ChipInfo()
    try:
        call(dcmi, "dcmi_get_device_die_v2", card, number, VDIE, byref(die))
        name = "NPU-" + "-".join(f"{word:08X}" for word in die.words)
    except (AttributeError, DcmiError):
        name = f"NPU-{card}-{number}"
    try:
        call(dcmi, "dcmi_get_device_chip_info", card, number, byref(chip))
    except (AttributeError, DcmiError):
        chip = ChipInfo()
    product = f"{chip.kind.decode(errors='replace')} {chip.name.decode(errors='replace')}".strip() or "Ascend"
    return ((vocabulary.HW_ID, name), (vocabulary.HW_NAME, product), (vocabulary.HW_TYPE, "gpu"))
