"""Tests of the clock."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from types import BuiltinFunctionType, SimpleNamespace

import pytest

import otel_rl
from otel_rl import clock
from otel_rl.clock import Clock, first_start_ns, measure_anchor, perf_counter_shift, process_start_ns
from otel_rl.journal.read import open_run


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
    monkeypatch.setattr(clock._time, "get_clock_info", lambda name: SimpleNamespace(implementation=clocks[name]))
    monkeypatch.setattr(clock, "perf_counter_ns", iter([300, 400]).__next__)
    monkeypatch.setattr(clock, "monotonic_ns", iter([1_000, 5_000]).__next__)
    perf_counter_shift.cache_clear()
    assert [expected] * 2 == [perf_counter_shift(), perf_counter_shift()]
    perf_counter_shift.cache_clear()


def test_the_tightest_of_three_readings_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that was descheduled between two of them does not spoil the anchor."""
    readings = iter([0, 100, 200, 204, 300, 350])
    monkeypatch.setattr(clock, "monotonic_ns", lambda: next(readings))
    monkeypatch.setattr(clock, "time_ns", lambda: 1_000)
    monkeypatch.setattr(clock, "is_wall_real", lambda: True)
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


REPLACED = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "strftime")


def replace_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the clocks of ``time`` in every module that has one, under whatever name, as freezegun does."""
    fakes = {id(getattr(time, name)): getattr(time, name) for name in REPLACED}
    for module in list(sys.modules.values()):
        for name, value in list(vars(module).items()):
            if id(value) in fakes:
                monkeypatch.setattr(module, name, (lambda *_: "") if name == "strftime" else lambda: 7)


def test_a_program_that_replaces_its_clocks_does_not_stop_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage lasts as long as it does, at the time that it is, and the flusher goes on."""
    monkeypatch.setenv("OTEL_RL_DIR", str(tmp_path))
    otel_rl.instrument(())
    before = time.time_ns()
    with monkeypatch.context() as clocks:
        replace_clocks(clocks)
        with otel_rl.step(0), otel_rl.stage("reward"):
            assert 7 == time.monotonic_ns()
            clock.sleep(0.01)
        assert otel_rl.flush(30)
        otel_rl.uninstrument()
    (run,) = tmp_path.iterdir()
    (span,) = [span for span in open_run(run).spans(None) if span.name == "rl.reward"]
    assert before - 10**9 < span.start_ns < span.end_ns - 10**7 < time.time_ns() + 10**9


def test_a_program_that_has_replaced_its_clocks_before_does_not_give_us_its_own() -> None:
    """What stands in ``time`` when otel_rl is loaded is not what it takes."""
    code = """
import time
real, time.monotonic_ns, time.time_ns, time.time = time.monotonic_ns, int, int, float
import otel_rl
from otel_rl import clock
assert 0 <= clock.monotonic_ns() - real() + 10**9 and clock.time_ns() > 10**18 and clock.time() > 10**9
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=os.getcwd())


def test_the_clocks_pickle_by_reference() -> None:
    """A function of ours that Ray sends by value takes them along."""
    names = [name for name, value in vars(clock).items() if isinstance(value, BuiltinFunctionType)]
    assert {"monotonic_ns", "time_ns", "sleep"} <= set(names)
    for name in names:
        assert getattr(clock, name) is pickle.loads(pickle.dumps(getattr(clock, name)))


def test_a_wall_clock_that_is_replaced_in_c_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's coarse one says so; an anchor is measured by that one."""
    ours, anchor = Clock(), measure_anchor()
    monkeypatch.setattr(clock, "time_ns", lambda: 1_577_836_800 * 10**9)
    assert (0, False) == (ours.re_anchor(), clock.is_wall_real())
    assert abs(measure_anchor() - anchor) < 10**9
