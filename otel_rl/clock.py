"""Time: spans are stamped with the monotonic clock and placed on the wall clock by an anchor.

Programs replace the clocks of ``time``: tests of a tool, simulators and tool environments do, as freezegun does, in
every module that has one under a name. What records takes its clocks from here. They are the functions of a second
``time``, which no program has a reference to.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.machinery import BuiltinImporter
from importlib.util import module_from_spec
from types import BuiltinFunctionType, ModuleType
from typing import Final

RE_ANCHOR_NS = 1_000_000
"""A smaller difference is noise; keeping the anchor lets consecutive steps tile to the nanosecond."""
COARSE: Final = 5
"""``CLOCK_REALTIME_COARSE`` of Linux: the wall clock at the kernel's last tick."""
TICK_NS: Final = 10_000_000
"""The longest tick of a kernel."""


def _second_time() -> ModuleType:
    """Load ``time`` once more; let its functions pickle by the names that they have here."""
    spec = BuiltinImporter.find_spec("time")
    if spec is None:
        raise ImportError("otel_rl needs a Python whose module time is built in, as CPython's is")
    module = module_from_spec(spec)
    BuiltinImporter.exec_module(module)
    for function in vars(module).values():
        if isinstance(function, BuiltinFunctionType):
            function.__module__ = __name__
    return module


_time: Final = _second_time()
monotonic: Callable[[], float] = _time.monotonic
monotonic_ns: Callable[[], int] = _time.monotonic_ns
perf_counter_ns: Callable[[], int] = _time.perf_counter_ns
sleep: Callable[[float], None] = _time.sleep
strftime: Callable[[str], str] = _time.strftime
thread_time_ns: Callable[[], int] = _time.thread_time_ns
time: Callable[[], float] = _time.time
time_ns: Callable[[], int] = _time.time_ns
clock_gettime_ns: Callable[[int], int] = _time.clock_gettime_ns


def measure_anchor() -> int:
    """Measure wall clock - monotonic clock, ns: the tightest of three tries, in case the thread is descheduled.

    Cost: 1 us. Width on a VM: 80 ns.
    """
    best_width, anchor = 1 << 62, 0
    for _ in range(3):
        before = monotonic_ns()
        wall = time_ns()
        after = monotonic_ns()
        if after - before < best_width:
            best_width, anchor = after - before, wall - (before + after) // 2
    return anchor if is_wall_real() else clock_gettime_ns(COARSE) - monotonic_ns()


def is_wall_real() -> bool:
    """Return whether the wall clock is the machine's: time-machine replaces it inside the C of ``time``.

    It leaves the coarse clock alone.
    """
    before = clock_gettime_ns(COARSE)
    wall = time_ns()
    return bool(before <= wall <= clock_gettime_ns(COARSE) + TICK_NS)


@cache
def perf_counter_shift() -> int:
    """Return what turns ``time.perf_counter_ns()`` into monotonic time if added, ns; 0 if the clocks are the same."""
    kinds = {_time.get_clock_info("monotonic").implementation, _time.get_clock_info("perf_counter").implementation}
    return 0 if len(kinds) == 1 else monotonic_ns() - perf_counter_ns()


class Clock:
    """The process's anchor; ``anchor`` changes only between steps, never inside one."""

    __slots__ = ("anchor", "set_ns")

    def __init__(self) -> None:
        self.anchor = measure_anchor()
        self.set_ns = 0
        """How far the wall clock has been set so far."""

    def re_anchor(self) -> int:
        """Follow the wall clock if it was set; return by how many ns, else 0."""
        if abs(time_ns() - monotonic_ns() - self.anchor) < RE_ANCHOR_NS or not is_wall_real():
            return 0
        measured = measure_anchor()  # that may have been a descheduled thread, too
        jump = measured - self.anchor
        if abs(jump) < RE_ANCHOR_NS:
            return 0
        self.anchor = measured
        self.set_ns += jump
        return jump


def process_start_ns() -> int:
    """Return when this process started, on the monotonic clock, to a tick of 10 ms; now if that is unknown."""
    try:
        with open("/proc/self/stat", "rb") as stat:
            ticks = int(stat.read().rpartition(b")")[2].split()[19])
        age_ns = clock_gettime_ns(_time.CLOCK_BOOTTIME) - ticks * (1_000_000_000 // _ticks_per_second())
    except (OSError, AttributeError, ValueError, IndexError):
        return monotonic_ns()
    return monotonic_ns() - max(age_ns, 0)


@cache
def first_start_ns() -> int:
    """Return when the process that loaded otel_rl started; a child that it forks inherits the answer."""
    return process_start_ns()


def _ticks_per_second() -> int:
    import os

    return os.sysconf("SC_CLK_TCK")
