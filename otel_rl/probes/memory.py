"""Memory of this process at one moment, read cheaply: raw readings now, numbers in the flusher."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_rl.guard import attempt
from otel_rl.journal.own_file import OwnFile
from otel_rl.process.memory import Memory

if TYPE_CHECKING:
    from otel_rl.probes.device import DeviceInUse

FIELDS = 2
PAGE = os.sysconf("SC_PAGE_SIZE")
FRESH_NS = 10_000_000
"""A reading of the host's memory serves again for so long. It costs 0.5 us in a loop and 6 to 25 us where it really
happens, between matrix products, when the kernel's code and data have left the caches (``benchmarks/cold.py``): two for
each stage of a 40 ms step were 1.5 % of it."""
MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


class Device(NamedTuple):
    """The allocator of a device, bytes; ``*_peak`` since the process began (or the user's own reset)."""

    allocated: int
    allocated_peak: int
    reserved: int
    reserved_peak: int
    active: int | None = None
    """What the allocator does not keep is None here and below: never 0."""
    inactive_split: int | None = None
    requested: int | None = None
    device: int = 0
    """Which device it is, among those that the process sees."""


ReadDevice = Callable[[int | None], Device | None]
"""Reads the memory of a device, by its number; None is the current one."""
Reading = tuple[bytes, Device | None]
"""One raw reading: the text of statm, and the device where it was read; ``host`` makes bytes of the first."""


UNREAD: Final[Reading] = b"", None
of_parents: Final[list[object]] = []
"""Events and pinned memory of devices that a fork inherited: to free them would use the parent's device."""


def _unread() -> Reading:
    return UNREAD


def _unknown() -> None:
    return None


@dataclass(eq=False)
class Probes(Memory):
    """The probes of this process, as ``instrument()`` and the integration of torch put them in place."""

    reader: MemoryReader | None = None
    read_memory: Callable[[], Reading] = _unread
    reading: Reading = UNREAD
    read_ns: int = 0
    """When it was read, monotonic."""
    read_device: ReadDevice | None = None
    find_device: Callable[[], str | None] = _unknown
    """Return the driver's name of the device that this process uses."""
    has_context: Callable[[int], object] | None = None
    """Return whether this process uses an accelerator, by its number; None if that cannot be known."""
    device: DeviceInUse | None = None
    """What records at both ends of a stage; None until the process uses a device."""

    def after_fork_in_child(self) -> None:
        """Stay, as the hooks do, but for what is the parent's."""
        of_parents.append(self.device)
        self.device, self.reading, self.read_ns = None, UNREAD, 0


probes = Probes.keep("probes")


@lru_cache(256)
def host(statm: bytes) -> tuple[int, int]:
    """Turn the text of statm into virtual and resident bytes; kept, because memory often stands still between edges.

    Anything else is (0, 0): a host that closes every descriptor may have opened a file of its own under our number.
    """
    pages = statm.split()
    if len(pages) < FIELDS or not all(map(bytes.isdigit, pages)):
        return 0, 0
    return int(pages[0]) * PAGE, int(pages[1]) * PAGE


class MemoryReader:
    """Keeps ``/proc/self/statm`` open, and ``read``, the function that reads it, and finds a device once it is in use.

    The file names the process that opened it, so a forked child needs a reader of its own. Cost of ``read``: 1.3 us
    without a device (``benchmarks/hotpath.py``); psutil's ``memory_info`` costs 10.
    """

    def __init__(self, device: ReadDevice | None = None) -> None:
        self._statm: OwnFile | None = None
        with suppress(OSError):  # no /proc
            self._statm = OwnFile("/proc/self/statm", os.O_RDONLY)
        self.read = self._reader(-1 if self._statm is None else self._statm.number, device)

    def is_own(self) -> bool:
        """Return whether the number is still our file's. Until it is asked, another's is read and not understood."""
        return self._statm is None or self._statm.is_own()

    def close(self) -> None:
        """Close the file."""
        if self._statm is not None:
            self._statm.close()

    @staticmethod
    def _reader(statm: int, device: ReadDevice | None) -> Callable[[], Reading]:
        pread = os.pread

        def read() -> Reading:
            try:
                return pread(statm, 64, 0), None
            except OSError:
                return b"", None

        if device is None:
            return read
        find = device

        def read_and_find() -> Reading:
            if probes.device is None:
                attempt("find", "the device", find, None)
            return read()

        return read_and_find


def use_memory_reader(device: ReadDevice | None = None) -> None:
    """Read this process's memory from now on with a new reader, and drop the one before."""
    if probes.reader is not None:
        probes.reader.close()
    probes.reader = MemoryReader(device)
    probes.read_device, probes.read_memory = device, probes.reader.read


def read_now(index: int | None) -> Reading:
    """Read host and device, however young the last reading is; None is the current device."""
    text: bytes = probes.read_memory()[0]
    return text, None if probes.read_device is None else probes.read_device(index)


def peak_rss() -> int:
    """Read the process's peak of resident bytes so far. Cost: 0.9 us, so steps read it and stages do not.

    It only rises. After an exec it begins with the peak of the program before (Linux keeps it).
    """
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_UNIT


def cuda_reader(cuda: Any, in_use: Callable[[], object] = lambda: None) -> ReadDevice:
    """Return the function that reads the allocator of ``torch.cuda`` (CUDA, ROCm) or ``torch.npu``.

    It never initialises the device and never resets a peak. One nested-dict call: ``memory_allocated()`` and its kin
    flatten and sort 122 keys each, 79 us.
    """
    is_initialized, current = cuda.is_initialized, cuda.current_device
    stats = cuda.memory.memory_stats_as_nested_dict

    def read(index: int | None) -> Device | None:
        if not is_initialized():
            return None
        if probes.device is None:
            in_use()  # first: an allocator of the program may refuse, and the device has a clock all the same
        try:
            index = current() if index is None else index
            readings = stats(index)
        except RuntimeError:  # it refuses, or the device has failed; the host hears of that from its own calls
            return None
        return _device(readings, index)

    return read


def _device(readings: dict[str, Any], index: int) -> Device | None:
    """Pick what is recorded; an allocator of the program (``CUDAPluggableAllocator``) may report nothing."""
    if "allocated_bytes" not in readings or "reserved_bytes" not in readings:
        return None
    allocated, reserved = readings["allocated_bytes"]["all"], readings["reserved_bytes"]["all"]
    return Device(
        allocated["current"],
        allocated["peak"],
        reserved["current"],
        reserved["peak"],
        _current(readings, "active_bytes"),
        _current(readings, "inactive_split_bytes"),
        _current(readings, "requested_bytes"),
        index,
    )


def _current(readings: dict[str, Any], name: str) -> int | None:
    found: dict[str, Any] = readings.get(name, {})
    value = found.get("all", {}).get("current")
    return value if isinstance(value, int) else None
