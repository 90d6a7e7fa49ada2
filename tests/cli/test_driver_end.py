"""When the end of `otel-rl run` reads what a driver recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_rl.cli import driver_end
from otel_rl.cli.driver_end import once_over
from otel_rl.journal.read import Run, open_run
from tests.driver_runs import DrivenPlan, write_driven
from tests.made_runs import Plan, write_run


@pytest.mark.parametrize(
    ("plan", "reads"),
    [
        (DrivenPlan(steps=2, ends="open", is_alive=True), 1),
        (DrivenPlan(steps=2, ends="killed", is_alive=True), 3),
        (DrivenPlan(steps=2, ends="killed"), 1),
    ],
    ids=["in_teardown", "in_its_loop", "dead"],
)
def test_a_driver_in_its_loop_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: DrivenPlan, reads: int
) -> None:
    """At most for a while."""
    times = iter((0.0, 0.5, 1.5, 2.5))
    monkeypatch.setattr(driver_end.time, "monotonic", lambda: next(times))
    monkeypatch.setattr(driver_end.time, "sleep", lambda _: None)
    path = write_driven(tmp_path, plan)
    found: list[list[Run]] = []

    def find() -> list[Run]:
        found.append([open_run(path)])
        return found[-1]

    assert once_over(find) is found[-1]
    assert reads == len(found)


def test_a_run_without_a_driver_is_not_waited_for(tmp_path: Path) -> None:
    """Its ranks end with the command."""
    runs = [open_run(write_run(tmp_path, Plan(steps=2, killed_in="rl.sample", is_alive=True)))]
    assert runs is once_over(lambda: runs)
