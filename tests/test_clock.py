"""Tests of the clock."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from otel_rl import clock
from otel_rl.clock import Clock, first_start_ns, measure_anchor, perf_counter_shift, process_start_ns


def test_the_anchor_turns_monotonic_into_wall_time() -> None:
    """Within a second, on any machine."""
    anchor = measure_anchor()
    before = time.time_ns()
    derived = time.monotonic_ns() + anchor
    assert before - 10**9 < derived < time.time_ns() + 10**9


@pytest.mark.parametrize(("kinds", "expected"), [("aa", 0), ("ab", 700)])
def test_the_performance_counter_is_made_monotonic(kinds: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By nothing where it is the same clock, else by a difference that is measured once."""
    clocks = dict(zip(("monotonic", "perf_counter"), kinds, strict=True))
    monkeypatch.setattr(clock.time, "get_clock_info", lambda name: SimpleNamespace(implementation=clocks[name]))
    monkeypatch.setattr(clock.time, "perf_counter_ns", iter([300, 400]).__next__)
    monkeypatch.setattr(clock, "monotonic_ns", iter([1_000, 5_000]).__next__)
    perf_counter_shift.cache_clear()
    assert [expected] * 2 == [perf_counter_shift(), perf_counter_shift()]
    perf_counter_shift.cache_clear()


def test_the_tightest_of_three_readings_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that was descheduled between two of them does not spoil the anchor."""
    readings = iter([0, 100, 200, 204, 300, 350])
    monkeypatch.setattr(clock, "monotonic_ns", lambda: next(readings))
    monkeypatch.setattr(clock.time, "time_ns", lambda: 1_000)
    assert 1_000 - 202 == measure_anchor()


@pytest.mark.parametrize(
    ("jump", "followed"), [(0, 0), (999_999, 0), (-999_999, 0), (1_000_000, 1_000_000), (-5_000_000, -5_000_000)]
)
def test_only_a_jump_moves_the_anchor(monkeypatch: pytest.MonkeyPatch, jump: int, followed: int) -> None:
    """Noise below a millisecond keeps it, so that consecutive steps tile to the nanosecond."""
    monkeypatch.setattr(clock, "measure_anchor", lambda: 7)
    ours = Clock()
    monkeypatch.setattr(clock, "measure_anchor", lambda: 7 + jump)
    assert (followed, 7 + followed, followed) == (ours.re_anchor(), ours.anchor, ours.set_ns)


def test_the_start_of_the_process_is_known() -> None:
    """Before now, and after the process that started this one asked for it."""
    before = time.monotonic_ns()
    code = "from otel_rl.clock import process_start_ns; print(process_start_ns())"
    begun = int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, cwd=os.getcwd()).stdout)
    assert before - 2 * 10**7 < begun < time.monotonic_ns()
    assert process_start_ns() < before


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_knows_when_the_first_process_began() -> None:
    """What it is told of may have begun in its parent; its own start is later."""
    begun = first_start_ns()
    child = os.fork()
    if not child:
        os._exit(first_start_ns() != begun)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert process_start_ns() - 10**9 < first_start_ns() < time.monotonic_ns()


@pytest.mark.parametrize("error", [FileNotFoundError, PermissionError])
def test_a_system_that_does_not_tell_gives_now(monkeypatch: pytest.MonkeyPatch, error: type[OSError]) -> None:
    """No /proc, no trouble."""

    def fail(*args: object) -> None:
        raise error

    monkeypatch.setattr("builtins.open", fail)
    monkeypatch.setattr(clock, "monotonic_ns", lambda: 5)
    assert 5 == process_start_ns()
