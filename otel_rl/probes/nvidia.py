"""NVIDIA devices by NVML: nothing where there is no driver; what a device does not report is left out."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any, Final

from otel_rl import vocabulary
from otel_rl.guard import say
from otel_rl.probes.gpm import GpmActivity
from otel_rl.probes.nvidia_readings import SIMPLE, NvidiaDevice, Question, Traffic, memory
from otel_rl.probes.sample import Sample, SampleLabels, Totals

AGAIN: Final = 12
"""After so many readings a driver or a device that did not answer is tried again: a minute for the sidecar."""


class NvidiaProbe:
    """All devices of the driver, and the parts that MIG cuts them into."""

    name = "nvidia"

    def __init__(self) -> None:
        self._session: NvidiaSession | None = None
        self._wait = 0
        self._totals = Totals()
        self._xids: XidCounts = XidCounts()
        self._known: dict[SampleLabels, bool] = {}
        """Every whole device that was ever there, and whether it is."""

    def read(self) -> Iterator[Sample]:
        """Sample every device. Cost: ``docs/hardware.md``."""
        self._find()
        if self._session is not None:
            try:
                yield from self._session.read()
            except self._session.ended:
                self._session.close()
                self._session, self._wait = None, 0
        self._report_changes()
        for labels, is_there in self._known.items():
            for state, value in (("ok", is_there), ("failed", not is_there)):
                yield Sample(vocabulary.HW_STATUS, int(value), (*labels, (vocabulary.HW_STATE, state)))

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session, self._wait = None, 0

    def _find(self) -> None:
        """Begin a session with the driver, where there is none or a device of it was lost, and not too often."""
        if self._session is not None and not self._session.has_lost:
            return
        self._wait -= 1
        if self._wait > 0:
            return
        self.close()
        self._wait = AGAIN
        self._session = open_session(self._totals, self._xids)

    def _report_changes(self) -> None:
        there = self._session.there if self._session is not None else set()
        for labels in there - set(self._known):
            self._known[labels] = True
        for labels, was_there in self._known.items():
            if was_there != (labels in there):
                text = "responds again" if labels in there else "does not respond"
                say("device %s (%s) %s", labels[0][1], labels[1][1], text)
            self._known[labels] = labels in there


class NvidiaSession:
    """From ``nvmlInit`` to ``nvmlShutdown``: the devices that were there, and the questions that each one answers."""

    def __init__(self, nvml: Any, totals: Totals, xids: XidCounts) -> None:
        self._nvml = nvml
        self._totals = totals
        self._questions: list[tuple[NvidiaDevice, list[Question]]] = []
        self._gpm: list[GpmActivity] = []
        self._xids: Xids | None = None
        self.there: set[SampleLabels] = set()
        """Whole devices that answer."""
        self.has_lost = False
        self.ended = (nvml.NVMLError_Uninitialized, nvml.NVMLError_DriverNotLoaded, nvml.NVMLError_LibRmVersionMismatch)
        """The driver was stopped or replaced."""
        self._lost = (nvml.NVMLError_GpuIsLost, nvml.NVMLError_ResetRequired)
        self._never = (
            nvml.NVMLError_NotSupported,
            nvml.NVMLError_FunctionNotFound,
            nvml.NVMLError_NoPermission,
            nvml.NVMLError_ArgumentVersionMismatch,
        )
        with suppress(nvml.NVMLError):
            self._xids = Xids(nvml, xids)
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                self._add_whole(nvml.nvmlDeviceGetHandleByIndex(index))
            except self._never:  # one that is not for us
                continue
            except self.ended:
                raise
            except nvml.NVMLError:  # one that is lost, or whose error may pass: it is tried again
                self.has_lost = True

    def read(self) -> Iterator[Sample]:
        if self._xids is not None:
            yield from self._xids.read()
        for device, readings in tuple(self._questions):
            has_answered = has_failed = False
            for reading in tuple(readings):
                try:
                    found = reading(device)
                    has_answered = has_answered or bool(found)
                    yield from found
                except self._never:
                    readings.remove(reading)
                except self._lost:
                    self._lose(device)
                    break
                except self.ended:
                    raise
                except self._nvml.NVMLError:
                    has_failed = True
            if has_failed and not has_answered and device.whole is None:
                self._lose(device)  # a device that has fallen off the bus often says no more than that it fails

    def close(self) -> None:
        for gpm in self._gpm:
            gpm.close()
        if self._xids is not None:
            self._xids.close()
        with suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    def _add_whole(self, handle: Any) -> None:
        labels = self._labels(handle)
        self.there.add(labels)
        traffic = Traffic()
        self._add(
            NvidiaDevice(self._nvml, handle, labels, self._totals),
            [*SIMPLE, traffic, traffic.received, traffic.transmitted],
        )
        if self._xids is not None:
            self._xids.watch(handle, labels)
        with suppress(self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_FunctionNotFound):
            is_cut, _ = self._nvml.nvmlDeviceGetMigMode(handle)
            for place in range(self._nvml.nvmlDeviceGetMaxMigDeviceCount(handle) if is_cut else 0):
                with suppress(self._nvml.NVMLError_NotFound, *self._never):  # no part, or one that is not for us
                    self._add_part(handle, self._nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place))

    def _add_part(self, whole: Any, handle: Any) -> None:
        """A part has memory and activity of its own; the other questions are the whole device's."""
        parent = (vocabulary.HW_PARENT, self._nvml.nvmlDeviceGetUUID(whole))
        instance = self._nvml.nvmlDeviceGetGpuInstanceId(handle)
        labels = (*self._labels(handle), parent)
        self._add(NvidiaDevice(self._nvml, handle, labels, self._totals, whole, instance), [memory])

    def _add(self, device: NvidiaDevice, readings: list[Question]) -> None:
        gpm = GpmActivity(self._nvml)
        self._gpm.append(gpm)
        self._questions.append((device, [*readings, gpm]))

    def _lose(self, lost: NvidiaDevice) -> None:
        whole = lost.handle if lost.whole is None else lost.whole
        self.there -= {device.labels for device, _ in self._questions if device.handle is whole}
        self._questions = [row for row in self._questions if whole is not row[0].handle and whole is not row[0].whole]
        self.has_lost = True

    def _labels(self, handle: Any) -> SampleLabels:
        return (
            (vocabulary.HW_ID, self._nvml.nvmlDeviceGetUUID(handle)),
            (vocabulary.HW_NAME, self._nvml.nvmlDeviceGetName(handle)),
            (vocabulary.HW_TYPE, "gpu"),
        )


def open_session(totals: Totals, xids: XidCounts) -> NvidiaSession | None:
    """Begin a session; None without nvidia-ml-py, a driver, or an answer of it."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    with suppress(pynvml.NVMLError), ExitStack() as ending:
        ending.callback(pynvml.nvmlShutdown)  # whatever raises: an old package of that name lacks something
        session = NvidiaSession(pynvml, totals, xids)
        ending.pop_all()
        return session
    return None


# --- critical errors (XID) --------------------------------------------------------------------------------------------

MOST_EVENTS: Final = 256
"""Events that are read at once; the next reading gets the others."""
MOST_CODES: Final = 64
"""Numbers of errors that become labels."""

XidCounts = Counter[tuple[SampleLabels, str]]


class Xids:
    """The events of all devices of one session with the driver.

    Raises:
        NVMLError: this driver has no events.
    """

    def __init__(self, nvml: Any, counts: XidCounts) -> None:
        self._nvml = nvml
        self._counts = counts
        self._devices: dict[int | None, SampleLabels] = {}
        self._set = nvml.nvmlEventSetCreate()

    def watch(self, handle: Any, labels: SampleLabels) -> None:
        nvml = self._nvml
        with suppress(nvml.NVMLError):
            wanted = nvml.nvmlDeviceGetSupportedEventTypes(handle) & nvml.nvmlEventTypeXidCriticalError
            if wanted:
                nvml.nvmlDeviceRegisterEvents(handle, wanted, self._set)
                self._devices[_address(handle)] = labels

    def read(self) -> Iterator[Sample]:
        """Count what has happened, without waiting. Cost: one call of the driver, and one for each event."""
        with suppress(self._nvml.NVMLError):  # NVMLError_Timeout: there are no more; any other: perhaps next time
            for _ in range(MOST_EVENTS if self._devices else 0):
                self._count(self._nvml.nvmlEventSetWait(self._set, 0))
        for (labels, code), count in self._counts.items():
            yield Sample(vocabulary.XID, count, (*labels, (vocabulary.XID_CODE, code)))

    def close(self) -> None:
        with suppress(self._nvml.NVMLError):
            self._nvml.nvmlEventSetFree(self._set)

    def _count(self, event: Any) -> None:
        labels = self._devices.get(_address(event.device))
        if labels is None or not event.eventType & self._nvml.nvmlEventTypeXidCriticalError:
            return
        code = str(event.eventData)
        if (labels, code) not in self._counts and len({code for _, code in self._counts}) >= MOST_CODES:
            code = "other"
        self._counts[labels, code] += 1


def _address(handle: Any) -> int | None:
    """Two handles of a device are two objects that point to the same place."""
    return ctypes.cast(handle, ctypes.c_void_p).value
