"""What a command says at its end, however long that takes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Timer
from threading import enumerate as enumerate_threads

import pytest

from otel_rl.cli import conclusion
from otel_rl.cli.conclusion import conclude
from otel_rl.guard import errors
from otel_rl.journal.read import Run, open_run
from otel_rl.report.build import build_report
from otel_rl.report.reading import RunReading
from tests.made_runs import Plan, write_run


@pytest.fixture
def hang(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[Run]]]:
    """Give a function that finds no run, and takes longer for it than there is time."""
    monkeypatch.setattr(conclusion, "LIMIT_S", 0.5)
    monkeypatch.setenv("COLUMNS", "300")
    over = Event()

    def wait() -> list[Run]:
        over.wait(60)
        return []

    yield wait
    over.set()
    for thread in enumerate_threads():
        if thread.name == "otel_rl-report":
            thread.join()


def test_a_report_in_time_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With where the other runs of the command are."""
    monkeypatch.setattr(conclusion, "LIMIT_S", 60.0)
    paths = [write_run(tmp_path, Plan(steps=4, run_id=name)) for name in ("one", "two")]
    conclude(lambda: [open_run(path) for path in paths], tmp_path, quiet=False)
    text = capsys.readouterr().err
    assert text.startswith("\notel_rl  one ")
    assert text.endswith(f" · otel-rl report -h\n{paths[0]}\notel-rl: also recorded in {paths[1]}\n")
    assert (1, 0, 0) == (text.count("\nHEALTH  "), text.count("\ngoodput "), text.count("takes longer"))


def test_a_report_that_takes_too_long_is_cut_to_its_head(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    hang: Callable[[], list[Run]],
) -> None:
    """It names the run, and the command that shows all; what is known by then is said."""
    path = write_run(tmp_path / "a b", Plan(ranks=3, steps=5))
    monkeypatch.setattr(conclusion, "build_report", lambda *given: [hang(), build_report(*given)][1])
    conclude(lambda: [open_run(path)], tmp_path, quiet=False)
    first, name, facts, times, *rest = capsys.readouterr().err.splitlines()
    assert ("", "otel_rl  healthy") == (first, name)
    assert "trl 1.16.0 · GRPO · tiny-qwen2 · 3 ranks · 5 steps" == facts
    assert times.startswith("started ")
    command = f"otel-rl report '{path}'"
    assert ["", f"otel-rl: the report takes longer than 0 s; to see all of it, run: {command}"] == rest


def test_a_head_needs_no_numbers(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    hang: Callable[[], list[Run]],
) -> None:
    """They may take too long to read, too."""
    path = write_run(tmp_path, Plan(steps=5))
    monkeypatch.setattr(RunReading, "read_numbers", lambda _: hang())
    conclude(lambda: [open_run(path)], tmp_path, quiet=False)
    first, name, times, *rest = capsys.readouterr().err.splitlines()
    assert ("", "otel_rl  healthy", True, 2) == (first, name, times.startswith("started "), len(rest))


@pytest.mark.parametrize("quiet", [False, True])
def test_a_root_that_cannot_be_read_in_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], hang: Callable[[], list[Run]], quiet: bool
) -> None:
    """A file server that hangs."""
    conclude(hang, tmp_path, quiet=quiet)
    command = f"OTEL_RL_DIR={tmp_path} otel-rl report"
    said = f"otel-rl: {tmp_path} cannot be read in 0 s; to see what was recorded, run: {command}\n"
    assert said == capsys.readouterr().err


@pytest.mark.guarded
def test_what_fails_behind_the_report_does_not_take_it_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is counted as an error of ours."""

    def fail(_: object) -> str:
        raise OSError

    monkeypatch.setattr(conclusion, "LIMIT_S", 60.0)
    monkeypatch.setattr(conclusion, "refusals", fail)
    path = write_run(tmp_path, Plan(steps=4))
    conclude(lambda: [open_run(path)], tmp_path, quiet=False)
    assert ({"show what was recorded": 1}, f"{path}") == (errors, capsys.readouterr().err.splitlines()[-1])


def test_an_interrupt_ends_it_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hang: Callable[[], list[Run]]
) -> None:
    """Its thread takes no signal."""
    monkeypatch.setattr(conclusion, "LIMIT_S", 50.0)
    timer = Timer(0.2, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        conclude(hang, tmp_path, quiet=False)
    timer.join()
