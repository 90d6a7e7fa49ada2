"""Wall clocks that are set during a run: a report of the same run says so, and is otherwise the same."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from otel_rl import vocabulary as v
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.read import open_run
from otel_rl.report.build import build_report
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import ClockSet, Report
from otel_rl.report.terminal import render
from tests.made_runs import BEGIN_NS, MS, SETUP_MS, FakeSpan, Plan, write_run
from tests.peers import ALIVE, Peer
from tests.watched import DEAD

HOUR_NS = 3_600_000 * MS
ATTEMPT = "a" * 32
Sets = Mapping[tuple[int, int], float]
SETS: tuple[Sets, ...] = (
    {(0, 7): 7200},
    {(0, 7): 7200, (1, 7): 7200},
    {(1, 7): -7200},
    {(0, 7): -7200, (1, 7): -7200},
    {(0, 7): 5, (1, 8): -5},
    {(0, 3): 7200, (0, 9): -14_400, (1, 1): -5},
)
"""By rank and step, s."""
PLANS: tuple[dict[str, Any], ...] = (
    {"slow_rank": 1, "checkpoint": True},
    {"nan_loss_step": 7, "device_memory": True, "dropped": 3},
    {"killed_in": v.BACKWARD},
)


def report_of(root: Path, now_s: int, *plans: Plan) -> Report:
    """Write the attempts of a run and report on it."""
    path = [write_run(root, plan) for plan in plans][-1]
    return replace(build_report(open_run(path), BEGIN_NS + HOUR_NS + now_s * 1000 * MS), path="")


def unplaced(report: Report) -> Report:
    """Leave out what a clock that is set changes: that it was, and the time since which a stage is open."""
    return replace(report, clocks_set=[], open_stages=[replace(one, since_ns=0) for one in report.open_stages])


def shown(report: Report) -> str:
    """Render a report."""
    console = Console(file=io.StringIO(), width=160)
    render(report, console)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


@pytest.mark.parametrize("sets", SETS)
@pytest.mark.parametrize("plan", PLANS)
def test_a_clock_that_is_set_changes_no_other_line(tmp_path: Path, plan: dict[str, Any], sets: Sets) -> None:
    """Times, averages, goodput, the order of steps, series, losses and where a rank died are told from durations."""
    calm = report_of(tmp_path / "calm", 0, Plan(**plan))
    found = report_of(tmp_path / "set", 0, Plan(**plan, clock_set_s=sets))
    assert unplaced(calm) == unplaced(found)
    assert (0, len(sets)) == (len(calm.clocks_set), len(found.clocks_set))


def test_a_time_that_a_clock_says_twice_is_of_the_step_that_comes_next(tmp_path: Path) -> None:
    """Behind the sixtieth step come fifty that say the times of the fifty before it; numbers are told by their time."""
    sets = {(rank, 60): -5.0005 for rank in (0, 1)}
    calm = report_of(tmp_path / "calm", 0, Plan(steps=120))
    found = report_of(tmp_path / "set", 0, Plan(steps=120, clock_set_s=sets))
    assert list(range(1, 121)) == next(one.steps for one in found.series if one.name == v.LOSS)
    assert unplaced(calm) == unplaced(found)


@pytest.mark.parametrize("by_s", [7200, -7200, 5])
def test_a_run_that_lives_lasts_until_now(tmp_path: Path, by_s: int) -> None:
    """By the clock that was set: an hour before which it began, and not three."""
    sets = {(0, 7): by_s, (1, 7): by_s}
    calm = report_of(tmp_path / "calm", 0, Plan(is_alive=True, killed_in=v.BACKWARD))
    found = report_of(tmp_path / "set", by_s, Plan(is_alive=True, killed_in=v.BACKWARD, clock_set_s=sets))
    assert unplaced(calm) == unplaced(found)
    assert ("alive", 3600.0) == (found.state, found.duration_s)


@pytest.mark.parametrize(("by_s", "duration_s"), [(7200, 4.86), (-7200, 3600.0)])
def test_the_clock_of_one_rank_makes_no_run_longer(tmp_path: Path, by_s: int, duration_s: float) -> None:
    """Whose clock the present is by is not known: it is the earlier one, or the last record where that is later."""
    found = report_of(tmp_path, 0, Plan(is_alive=True, killed_in=v.BACKWARD, clock_set_s={(1, 7): by_s}))
    assert duration_s == found.duration_s


@pytest.mark.parametrize("by_s", [7200, -60])
def test_steps_that_a_restart_made_again_are_wasted(tmp_path: Path, by_s: int) -> None:
    """The second attempt begins by the clock as the first left it."""
    first, second = {"killed_in": v.BACKWARD}, {"attempt": "b" * 32, "first_step": 7, "shift_ms": 600_000}
    calm = report_of(tmp_path / "calm", 0, Plan(**first), Plan(**second))
    sets = {(rank, 7): by_s for rank in (0, 1)}
    second["shift_ms"] += by_s * 1000
    found = report_of(tmp_path / "set", 0, Plan(**first, clock_set_s=sets), Plan(**second))
    assert (calm.efficiency.goodput, calm.steps) == (found.efficiency.goodput, found.steps)
    assert [True, False, True] == [row.parts[3].time_ns > 0 for row in found.efficiency.goodput]


@pytest.mark.parametrize("identity", [DEAD, ALIVE])
def test_a_worker_that_began_behind_it_makes_no_run_longer(tmp_path: Path, identity: WriterIdentity) -> None:
    """Its clock is the one that was set: what it recorded lies hours behind what its trainer did in the same step."""
    calm, found = tmp_path / "calm", tmp_path / "set"
    reports = []
    for root, by_s in ((calm, 0), (found, 7200)):
        path = write_run(root, Plan(clock_set_s={(0, 7): by_s, (1, 7): by_s} if by_s else {}))
        worker = Peer(path, 0, attempt=ATTEMPT, role="loader", clock_ms=SETUP_MS + by_s * 1000, identity=identity)
        worker.write([FakeSpan("tokenize", 7, 7, 8, worker.now_ns, worker.now_ns + MS)])
        worker.open("tokenize")
        worker.die()
        reports.append(replace(build_report(open_run(path), BEGIN_NS + (by_s * 1000 + 60_000) * MS), path=""))
    assert unplaced(reports[0]) == unplaced(reports[1])


def test_the_report_says_by_how_much_each_clock_was_set(tmp_path: Path) -> None:
    """Once: ranks that share a host have one clock."""
    found = report_of(tmp_path, 0, Plan(clock_set_s={(0, 3): 7200, (1, 3): 7200, (1, 9): -5}))
    rows = [(0, 3, 7200.0), (1, 3, 7200.0), (1, 9, -5.0)]
    assert [
        ClockSet(attempt=ATTEMPT, rank=Rank("trainer", rank), loop="train", step=step, by_s=by_s)
        for rank, step, by_s in rows
    ] == sorted(found.clocks_set, key=lambda row: (row.step, row.rank))
    assert (
        "Wall clocks were set: that of rank 0 and rank 1 forward by 2 h 00 min before step 3 and that of rank 1 back "
        "by 5.00 s before step 9; durations do not depend on that."
    ) in " ".join(shown(found).split())
