"""`otel-rl watch` waits until a run has a finding, or ends, and says which by its exit code."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from threading import Timer

import pytest
from typer.testing import CliRunner

from otel_rl import vocabulary as v
from otel_rl.cli import app
from otel_rl.cli.commands import watch
from otel_rl.journal.read import Run
from otel_rl.process.mailbox import send
from otel_rl.process.on_finding import FINDING, LiveFinding
from tests.made_runs import Plan, write_run

cli = CliRunner()
ALARM = LiveFinding(
    rule="nan", kind="learn", severity="alarm", state="begun", sentence="All is NaN.", id="a", time_ns=1
)
WARNING = replace(ALARM, rule="noisy", severity="warning", sentence="It is noisy.", id="w")
ALIVE = Plan(killed_in=v.SAMPLE, is_alive=True)
"""Its process is that of the test."""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look often."""
    monkeypatch.setattr(watch, "LOOK_S", 0.01)
    monkeypatch.setattr(watch, "QUIET_S", 0.05)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where runs are kept."""
    monkeypatch.setenv("OTEL_RL_DIR", str(tmp_path))
    return tmp_path


def tell(run: Path, *findings: LiveFinding) -> None:
    """Tell as a sidecar does."""
    for one in findings:
        send(run, "sidecar-0-1", FINDING, "a", one.to_json())


@pytest.mark.parametrize(
    ("until", "told", "code"),
    [
        ("alarm", [ALARM], 5),
        ("alarm", [WARNING, ALARM], 5),
        ("warning", [WARNING], 4),
        ("warning", [WARNING, ALARM], 5),
        ("alarm", [ALARM, replace(ALARM, state="over", time_ns=2), replace(ALARM, id="b", time_ns=3)], 5),
    ],
)
def test_a_finding_that_goes_on_ends_it(root: Path, until: str, told: list[LiveFinding], code: int) -> None:
    """Also one that was told before."""
    tell(write_run(root, ALIVE), *told)
    result = cli.invoke(app, ["watch", "--until", until])
    lines = [f"learn {one.severity}: {one.sentence}" for one in told]
    assert (code, lines, "") == (result.exit_code, result.stdout.splitlines(), result.stderr)


def test_it_waits_for_what_comes(root: Path) -> None:
    """A warning, and an alarm that is over, are printed; the next alarm ends it."""
    run = write_run(root, ALIVE)
    tell(run, ALARM, replace(ALARM, state="over", sentence="Over: All is NaN.", time_ns=2))
    timer = Timer(0.2, tell, (run, WARNING, replace(ALARM, id="c", sentence="Again.")))
    timer.start()
    result = cli.invoke(app, ["watch", "healthy"])
    timer.join()
    expected = ["alarm: All is NaN.", "alarm: Over: All is NaN.", "warning: It is noisy.", "alarm: Again."]
    assert (5, [f"learn {line}" for line in expected]) == (result.exit_code, result.stdout.splitlines())


@pytest.mark.parametrize(
    ("plan", "until", "code", "counts"),
    [
        (Plan(steps=20), "warning", 0, "0 alarms and 0 warnings"),
        (Plan(steps=40, nan_loss_step=30), "warning", 4, "0 alarms and 1 warning"),
        (Plan(steps=40, nan_loss_step=30), "alarm", 0, "0 alarms and 1 warning"),
        (Plan(killed_in=v.SAMPLE), "alarm", 5, "1 alarm and 0 warnings"),
    ],
)
def test_a_run_that_has_ended_is_judged_as_a_whole(root: Path, plan: Plan, until: str, code: int, counts: str) -> None:
    """What no sidecar told counts; what it comes to is said."""
    write_run(root, plan)
    result = cli.invoke(app, ["watch", "--until", until])
    assert code == result.exit_code, result.output
    assert (code > 0) <= bool(result.stdout.strip())
    assert f"otel-rl: the run healthy has ended with {counts}\n" == result.stderr


def test_a_run_that_ends_meanwhile(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is judged when its processes are gone for a while, here as one that was killed: a restart begins sooner."""
    write_run(root, ALIVE)
    lives = iter([True, False, True, *[False] * 10_000])
    monkeypatch.setattr(Run, "alive", lambda self: next(lives))
    result = cli.invoke(app, ["watch"])
    assert (5, True) == (result.exit_code, result.stdout.startswith("health alarm: "))
    assert 9_998 > len(list(lives)), "it did not wait"


def test_a_run_that_never_begins(root: Path) -> None:
    result = cli.invoke(app, ["watch", "--start", "0.05"])
    assert (3, True) == (result.exit_code, "nothing was recorded below" in result.stderr)


def test_a_run_that_begins_later(root: Path) -> None:
    timer = Timer(0.2, lambda: tell(write_run(root, ALIVE), ALARM))
    timer.start()
    code = cli.invoke(app, ["watch"]).exit_code
    timer.join()
    assert 5 == code


def test_a_run_that_nobody_judges(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said once."""
    monkeypatch.setattr(watch, "UNWATCHED_S", 0.0)
    run = write_run(root, ALIVE)
    timer = Timer(0.3, tell, (run, ALARM))
    timer.start()
    result = cli.invoke(app, ["watch"])
    timer.join()
    assert (5, 1) == (result.exit_code, result.stderr.count("no sidecar judges this run"))


@pytest.mark.medium
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it(root: Path, number: signal.Signals, code: int) -> None:
    """Without a traceback."""
    tell(write_run(root, ALIVE), WARNING)
    command = [sys.executable, "-m", "otel_rl", "watch"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(number)
        _, complaint = process.communicate()
    assert ("learn warning: It is noisy.\n", code, "") == (line, process.returncode, complaint)
